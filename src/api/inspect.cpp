#include "ubep/inspect.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <chrono>
#include <cstring>
#include <fstream>
#include <memory>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "base/fabric_facts.hpp"
#include "base/group_config.hpp"
#include "base/math.hpp"
#include "fabric/shm/notice.hpp"
#include "fabric/shm/probe.hpp"
#include "fabric/shm/segment.hpp"
#include "memory/word.hpp"
#include "protocol/op_line.hpp"

namespace ubep {
namespace {

constexpr std::string_view kLink = "/memfd:ubep-segment";

struct CloseDirectory {
  void operator()(DIR* directory) const { closedir(directory); }
};
using Directory = std::unique_ptr<DIR, CloseDirectory>;

// The entries of a folder that are numbers.
std::vector<int> numbers_in(const std::string& folder) {
  std::vector<int> numbers;
  const Directory directory(opendir(folder.c_str()));
  if (directory == nullptr) return numbers;  // another user's, or the process has ended
  while (const dirent* entry = readdir(directory.get())) {
    int number = 0;
    const char* end = entry->d_name + std::strlen(entry->d_name);
    if (std::from_chars(entry->d_name, end, number).ptr == end) numbers.push_back(number);
  }
  return numbers;
}

// Somebody else's: to open and close an own one would cost this process its life lock.
bool is_segment(const std::string& path) {
  char target[64];
  const ssize_t bytes = readlink(path.c_str(), target, sizeof(target));
  if (bytes <= 0 || !std::string_view(target, static_cast<std::size_t>(bytes)).starts_with(kLink)) {
    return false;
  }
  struct stat file = {};
  return stat(path.c_str(), &file) == 0 && !is_own_segment(file);
}

// The first bytes of somebody's segment, mapped for reading.
class Window {
 public:
  explicit Window(const std::string& path)
      : fd_(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    struct stat info = {};
    if (fd_ < 0 || fstat(fd_, &info) != 0) return;
    key_ = {info.st_dev, info.st_ino};
    // Nobody can cut it under us.
    if ((fcntl(fd_, F_GET_SEALS) & F_SEAL_SHRINK) == 0) return;
    bytes_ = static_cast<std::uint64_t>(info.st_size);
    if (bytes_ < kFabricHeaderBytes) return;
    void* data = mmap(nullptr, bytes_, PROT_READ, MAP_SHARED | MAP_NORESERVE, fd_, 0);
    if (data != MAP_FAILED) data_ = static_cast<std::byte*>(data);
  }
  ~Window() {
    if (data_ != nullptr) munmap(data_, bytes_);
    if (fd_ >= 0) close(fd_);
  }
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;

  const std::byte* data() const { return data_; }
  std::uint64_t bytes() const { return bytes_; }
  std::pair<dev_t, ino_t> key() const { return key_; }
  int fd() const { return fd_; }

 private:
  int fd_;
  std::pair<dev_t, ino_t> key_;
  std::uint64_t bytes_ = 0;
  std::byte* data_ = nullptr;
};

std::string printable(std::string text) {
  for (char& c : text) {
    if (std::isprint(static_cast<unsigned char>(c)) == 0) c = '?';
  }
  return text;
}

std::string process_state(int pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string text;
  std::getline(file, text);
  const std::size_t name_end = text.rfind(')');
  if (name_end == std::string::npos || name_end + 2 >= text.size()) return {};
  switch (text[name_end + 2]) {
    case 'R':
      return "running";
    case 'S':
      return "sleeping";
    case 'D':
      return "in the kernel";
    case 'T':
      return "stopped";
    case 't':
      return "traced";
    case 'Z':
      return "ended";
    default:
      return "?";
  }
}

std::string command_of(int pid) {
  std::ifstream file(fmt::format("/proc/{}/comm", pid));
  std::string text;
  std::getline(file, text);
  return printable(text);
}

// Whether the words that the identity names lie in the segment.
bool is_sound(const Identity& who, std::uint64_t bytes) {
  const auto slots = std::uint64_t{who.slots};
  if (slots < 1 || slots > kMaxSlots || who.size < 1 || who.size > kMaxRanks) return false;
  if (who.rank < 0 || who.rank >= who.size) return false;
  if (who.first_op % 8 != 0 || who.first_word % 8 != 0 || who.slot_bytes % 8 != 0) return false;
  return who.first_op + 4 * slots * sizeof(OpLine) <= bytes &&
         std::uint64_t{who.first_word} + (slots - 1) * who.slot_bytes + 3 * kLineBytes <= bytes;
}

const char* state_name(const std::byte* segment, bool alive) {
  // acquires: nothing; only the value is shown.
  switch (static_cast<PeerState>(SharedWord(segment + kStateOffset).load_acquire())) {
    case PeerState::left:
      return "left";
    case PeerState::failed:
      return "failed";
    default:
      return alive ? "live" : "dead";
  }
}

// The line of the operation that was started last.
OpLine last_operation(const std::byte* segment, const Identity& who) {
  OpLine last;
  for (std::uint64_t i = 0; i < std::uint64_t{4} * who.slots; ++i) {
    const std::byte* place = segment + who.first_op + i * sizeof(OpLine);
    // acquires: the line of this number; it is only shown.
    const std::uint64_t seq = SharedWord(place).load_acquire();
    if (seq <= last.seq) continue;
    std::memcpy(&last, place, sizeof(last));
    last.seq = seq;
  }
  return last;
}

const char* stage_of(const std::byte* segment, const Identity& who, const OpLine& op) {
  const std::byte* words = segment + who.first_word + op.epoch % who.slots * who.slot_bytes;
  const auto word = [&](std::uint64_t line) {
    // acquires: nothing; only the value is shown.
    return SharedWord(words + line * kLineBytes).load_acquire();
  };
  const std::uint64_t pub = word(0);
  const std::uint64_t out = word(1);
  const std::uint64_t done = word(2);
  if (done >= op.epoch) return out == 2 * op.epoch ? "complete" : "given up";
  if (op.kind == OpKind::combine) {
    return out >= 2 * op.epoch ? "outputs published" : "outputs not published";
  }
  return pub >= op.epoch ? "tokens published" : "tokens not published";
}

void add_operation(const std::byte* segment, const Identity& who, RankReport& report) {
  const OpLine op = last_operation(segment, who);
  if (op.seq == 0) return;
  report.kind = op.kind;
  report.operations = op.seq;
  report.epoch = op.epoch;
  report.stage = stage_of(segment, who, op);
}

void add_wait(const std::byte* segment, RankReport& report) {
  WaitShown wait;
  for (int tries = 0; tries < 100 && !read_wait(segment, wait); ++tries) usleep(10);
  report.wait = wait.status;
  report.wait_for = printable(wait.text);
  if (report.wait.ok()) return;
  const std::chrono::nanoseconds now = std::chrono::steady_clock::now().time_since_epoch();
  const auto ms_since = [&](std::uint64_t then) {
    return std::max(0.0, static_cast<double>(now.count()) - static_cast<double>(then)) / 1e6;
  };
  report.waited_ms = ms_since(wait.since_ns);
  report.looked_ms = ms_since(wait.looked_ns);
}

bool read_rank(const Window& window, RankReport& report) {
  Identity who;
  const std::byte* segment = window.data();
  if (segment == nullptr || !read_identity(segment, who) || !is_sound(who, window.bytes())) {
    return false;
  }
  report.job = printable(who.job);
  report.group = who.group;
  report.rank = who.rank;
  report.size = who.size;
  report.slots = static_cast<int>(who.slots);
  const LifeLock lock = look_at_life_lock(window.fd(), who.rank);
  report.alive = lock.held;
  report.pid = lock.held ? lock.pid : who.pid;
  report.state = state_name(segment, lock.held);
  if (lock.held && report.pid != 0) {
    report.process = process_state(report.pid);
    report.command = command_of(report.pid);
  }
  add_operation(segment, who, report);
  if (report.alive) add_wait(segment, report);
  return true;
}

}  // namespace

std::vector<RankReport> inspect_ranks() {
  const std::vector<int> processes = numbers_in("/proc");
  if (processes.empty()) throw Error(ErrorCode::setup, "/proc cannot be read");
  std::vector<RankReport> reports;
  std::set<std::pair<dev_t, ino_t>> seen;  // peers hold each other's
  for (int pid : processes) {
    const std::string folder = fmt::format("/proc/{}/fd", pid);
    for (int fd : numbers_in(folder)) {
      const std::string path = fmt::format("{}/{}", folder, fd);
      if (!is_segment(path)) continue;
      const Window window(path);
      if (!seen.insert(window.key()).second) continue;
      RankReport report;
      if (read_rank(window, report)) reports.push_back(std::move(report));
    }
  }
  std::sort(reports.begin(), reports.end(), [](const RankReport& a, const RankReport& b) {
    return std::tie(a.job, a.group, a.rank) < std::tie(b.job, b.group, b.rank);
  });
  return reports;
}

}  // namespace ubep
