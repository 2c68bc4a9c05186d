#include "tools/ubep/launched.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <new>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tools/ubep/exit_code.hpp"
#include "tools/ubep/host_stage.hpp"
#include "tools/ubep/input_error.hpp"
#include "ubep/ubep.hpp"

namespace ubep::tools {
namespace {

// Ranks that fail for the same reason fail within this time.
constexpr auto kHoldsReport = std::chrono::seconds(1);
// A launcher may end all ranks when the first has ended: the report must be out by then.
constexpr auto kLeavesTime = std::chrono::milliseconds(200);

// The same text in all ranks of a launch, also when the launcher's variables are wrong.
std::string launch_name() {
  try {
    return Bootstrap::from_environment().job;
  } catch (const Error&) {
    return fmt::format("parent-{}", getppid());
  }
}

// Binds an abstract socket: the kernel lets one process have the name, until it ends.
bool claim(const std::string& name) {
  static int held = -1;  // to the end of the process
  held = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  name.copy(address.sun_path + 1, sizeof(address.sun_path) - 2);
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return bind(held, reinterpret_cast<const sockaddr*>(&address), length) == 0 ||
         errno != EADDRINUSE;
}

struct GivenOption {
  std::string name;
  float value;  // a hash of what was given: exact in fp32
};

// Everything but where the result goes.
std::vector<GivenOption> given_options(const CLI::App& app) {
  std::vector<GivenOption> given;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_name() == "--json" || option->get_name() == "--help") continue;
    std::string text;
    for (const std::string& value : option->results()) text += value + '\n';
    const std::size_t hash = std::hash<std::string>{}(text) % (1 << 24);
    given.push_back({option->get_name(), static_cast<float>(hash)});
  }
  return given;
}

// Collective: every rank shows every rank what it was given, as a token.
void agree_on_options(const CLI::App& app, Bootstrap bootstrap) {
  bootstrap.job += "/options";
  const std::vector<GivenOption> given = given_options(app);
  std::vector<float> x;
  for (const GivenOption& option : given) x.push_back(option.value);
  const auto width = static_cast<std::int64_t>(x.size());
  CommunicatorOptions options;
  options.num_experts = options.max_topk = bootstrap.size;
  options.max_tokens = 1;
  options.max_hidden = static_cast<int>(width);
  options.max_dtype = DType::fp32;
  auto comm = Communicator::create(bootstrap, options);
  std::vector<std::int32_t> everyone(static_cast<std::size_t>(bootstrap.size));
  std::iota(everyone.begin(), everyone.end(), 0);
  const std::vector<float> weights(everyone.size(), 0.0F);
  Handle handle;
  must(comm.dispatch({x.data(), 1, width, DType::fp32}, {everyone, weights, bootstrap.size}, {},
                     handle));
  std::string difference;
  const auto* first = reinterpret_cast<const float*>(handle.received().row(0));
  for (int rank = 1; rank < bootstrap.size; ++rank) {
    const auto* row = reinterpret_cast<const float*>(handle.received().row(rank));
    for (std::size_t i = 0; i < given.size() && difference.empty(); ++i) {
      if (row[i] == first[i]) continue;
      difference = fmt::format("{} differs between rank 0 and rank {}", given[i].name, rank);
    }
  }
  must(comm.combine(handle, {.out = {x.data(), 1, width, DType::fp32}}));
  if (!difference.empty()) throw InputError(difference + ": expected the same on all ranks");
}

}  // namespace

bool under_launcher() {
  if (!Bootstrap::in_environment()) return false;
  try {
    const Bootstrap bootstrap = Bootstrap::from_environment();
    return bootstrap.launcher != "Slurm" || bootstrap.size > 1;
  } catch (const Error&) {
    return true;
  }
}

void take_world(const CLI::App& app, int& ranks) {
  if (!under_launcher()) return;
  const Bootstrap bootstrap = Bootstrap::from_environment();
  if (app.count("--ranks") > 0 && ranks != bootstrap.size) {
    throw InputError(fmt::format("--ranks is {}, but a launcher started {} ranks ({})", ranks,
                                 bootstrap.size, bootstrap.launcher));
  }
  ranks = bootstrap.size;
  agree_on_options(app, bootstrap);
}

std::unique_ptr<Stage> make_stage(const Bootstrap& bootstrap, std::size_t doubles) {
  if (!bootstrap.address.empty()) return std::make_unique<HostStage>(bootstrap, doubles);
  const int fd = shared_file(bootstrap, SharedStage::bytes_of(bootstrap.size, doubles));
  auto stage = std::make_unique<SharedStage>(bootstrap.size, doubles, fd);
  close(fd);
  return stage;
}

// Rank 0 sends the place of its memory file to all others, as a token that every rank's expert
// gets.
int shared_file(const Bootstrap& bootstrap, std::size_t bytes) {
  CommunicatorOptions options;
  options.num_experts = options.max_topk = bootstrap.size;
  options.max_tokens = 1;
  options.max_hidden = 2;
  options.max_dtype = DType::fp32;
  auto comm = Communicator::create(bootstrap, options);
  int fd = -1;
  std::vector<float> place(2);  // process and descriptor: exact in fp32, both are below 2^24
  std::vector<std::int32_t> everyone(static_cast<std::size_t>(bootstrap.size));
  std::iota(everyone.begin(), everyone.end(), 0);
  std::vector<float> weights(everyone.size(), 0.0F);
  const bool first = bootstrap.rank == 0;
  if (first) {
    fd = memfd_create("ubep", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, static_cast<off_t>(bytes)) != 0) throw std::bad_alloc();
    place = {static_cast<float>(getpid()), static_cast<float>(fd)};
  } else {
    everyone.clear();
    weights.clear();
  }
  const std::int64_t tokens = first ? 1 : 0;
  Handle handle;
  must(comm.dispatch({place.data(), tokens, 2, DType::fp32}, {everyone, weights, bootstrap.size},
                     {}, handle));
  if (!first) {
    const auto* row = reinterpret_cast<const float*>(handle.received().row(0));
    const std::string path = fmt::format("/proc/{:.0f}/fd/{:.0f}", row[0], row[1]);
    fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (fd < 0) throw std::runtime_error("cannot open " + path);
  }
  must(comm.combine(handle, {.out = {place.data(), tokens, 2, DType::fp32}}));
  return fd;
}

void print_once(const std::function<void()>& print) {
  if (!under_launcher()) return print();
  const std::size_t launch = std::hash<std::string>{}(launch_name());
  if (!claim(fmt::format("ubep-report-{}-{:016x}", geteuid(), launch))) {
    std::this_thread::sleep_for(kLeavesTime);
    return;
  }
  print();
  std::this_thread::sleep_for(kHoldsReport);
}

}  // namespace ubep::tools
