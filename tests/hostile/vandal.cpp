#include "hostile/vandal.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>

namespace ubep::test {
namespace {

constexpr std::array kNames = {"words",    "op lines",       "records and base tables",
                               "its rows", "peers' inboxes", "all of it"};

template <class T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

// As one store, so that peers see a word old or new.
void store_word(std::byte* at, std::uint64_t value) {
  std::atomic_ref<std::uint64_t>(*reinterpret_cast<std::uint64_t*>(at)).store(value);
}

}  // namespace

const char* name(Target target) { return kNames[static_cast<std::size_t>(target)]; }

Mischief make_mischief(Target target, Random& random) {
  Mischief mischief;
  mischief.target = target;
  mischief.pause_us = random.pick<int>({0, 5, 50, 500, 3000});
  mischief.delay_us = random.below(random.one_in(3) ? 200 : 20'000);
  mischief.strokes = random.one_in(3) ? random.between(1, 4) : -1;
  mischief.rough = random.one_in(3);
  mischief.seed = random.next();
  return mischief;
}

Vandal::Vandal(const GroupConfig& config, int rank, const Mischief& mischief)
    : config_(config),
      layout_(config, rank),
      rank_(rank),
      mischief_(mischief),
      random_(mischief.seed) {}

void Vandal::start() {
  thread_ = std::thread([this] { run(); });
}

void Vandal::stop() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
}

// The memory files that this process has mapped for writing.
bool Vandal::find_memory() {
  if (segment_.data != nullptr) return true;
  std::ifstream maps("/proc/self/maps");
  std::vector<Area> inboxes;
  Area segment;
  for (std::string line; std::getline(maps, line);) {
    unsigned long begin = 0;
    unsigned long end = 0;
    char permissions[8] = {};
    if (std::sscanf(line.c_str(), "%lx-%lx %7s", &begin, &end, permissions) != 3) continue;
    if (permissions[1] != 'w') continue;
    const Area area{reinterpret_cast<std::byte*>(begin), end - begin};
    if (line.find("/memfd:ubep-segment") != std::string::npos) segment = area;
    if (line.find("/memfd:ubep-inbox") != std::string::npos) inboxes.push_back(area);
  }
  if (segment.data == nullptr) return false;
  inboxes_ = std::move(inboxes);
  segment_ = segment;
  return true;
}

void Vandal::run() {
  std::this_thread::sleep_for(std::chrono::microseconds(mischief_.delay_us));
  for (int left = mischief_.strokes; left != 0 && !stop_;) {
    if (find_memory()) {
      strike();
      if (left > 0) --left;
    }
    if (mischief_.pause_us == 0) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(random_.below(mischief_.pause_us)));
    }
    // Inboxes of peers are mapped after the own one.
    if (random_.one_in(16)) segment_ = {};
  }
}

void Vandal::strike() {
  if (!find_memory()) return;
  Target target = mischief_.target;
  if (target == Target::everything) target = static_cast<Target>(random_.below(5));
  strike_at(target);
}

void Vandal::strike_at(Target target) {
  switch (target) {
    case Target::words:
      return spoil_word();
    case Target::op_lines:
      return spoil_op_line();
    case Target::records:
      return spoil_record();
    case Target::rows:
      return spoil_rows();
    default:
      if (!inboxes_.empty()) {
        spoil_range(
            inboxes_[static_cast<std::size_t>(random_.below(static_cast<int>(inboxes_.size())))],
            4096);
      }
  }
}

// One that a rank might have stored, or not.
std::uint64_t Vandal::value_like(std::uint64_t now) {
  if (mischief_.rough && random_.one_in(2)) return random_.next();
  switch (random_.below(8)) {
    case 0:
      return now + 1;
    case 1:
      return now - 1;
    case 2:
      return now + static_cast<std::uint64_t>(random_.below(5));
    case 3:
      return now ^ std::uint64_t{1} << random_.below(64);
    case 4:
      return now * 2;
    case 5:
      return static_cast<std::uint64_t>(random_.below(40));
    case 6:
      return ~static_cast<std::uint64_t>(random_.below(3));
    default:
      return random_.next() >> random_.below(64);
  }
}

void Vandal::put_word(std::uint64_t offset) {
  std::byte* at = segment_.data + offset;
  store_word(at, value_like(load<std::uint64_t>(at)));
}

void Vandal::put_number(std::uint64_t offset) {
  std::byte* at = segment_.data + offset;
  const auto value = static_cast<std::uint32_t>(value_like(load<std::uint32_t>(at)));
  std::memcpy(at, &value, sizeof(value));
}

void Vandal::spoil_word() {
  const int slot = random_.below(config_.slots);
  const int experts = config_.experts.num_local(rank_);
  switch (random_.below(10)) {
    case 0:
      return put_word(layout_.op(random_.next() >> 1));
    case 1:
      return put_word(layout_.pub(slot));
    case 2:
      return put_word(layout_.out(slot));
    case 3:
      return put_word(layout_.done(slot));
    case 4:
      return config_.push ? put_word(layout_.base(slot)) : put_word(layout_.pub(slot));
    case 5:
      return config_.push ? put_word(layout_.sent(slot, random_.below(config_.size)))
                          : put_word(layout_.out(slot));
    case 6:
      if (config_.protocol == Protocol::sentinel) put_word(layout_.armed(slot));
      return;
    case 7:
      if (experts != 0) {
        put_word(layout_.out_expert(slot, static_cast<std::uint64_t>(random_.below(experts))));
      }
      return;
    case 8:  // the fabric's: state and probe
      return put_word(random_.one_in(2) ? 0 : 64);
    default:
      return put_word(random_.next() % (layout_.offsets(0).offset / 8) * 8);
  }
}

// In fields that are a rank's own affair, values that a rank may have.
void Vandal::tell_lies(std::uint64_t offset) {
  std::byte* place = segment_.data + offset;
  OpLine line;
  std::memcpy(&line, place, sizeof(line));
  const auto up_to = [this](int most) {
    return static_cast<std::uint32_t>(random_.below(most + 1));
  };
  switch (random_.below(6)) {
    case 0:
      line.tokens = up_to(config_.max_tokens);
      break;
    case 1:
      line.path = static_cast<Path>(random_.between(1, 5));
      break;
    case 2:
      line.alignment = static_cast<std::uint16_t>(random_.between(1, kMaxAlignment));
      break;
    case 3:
      line.capacity = up_to(config_.expert_capacity);
      break;
    case 4:
      line.contiguous = static_cast<std::uint8_t>(up_to(1)) & 1;
      line.marks = static_cast<std::uint8_t>(up_to(1)) & 1;
      break;
    default:
      line.by_expert = static_cast<std::uint8_t>(up_to(1)) & 1;
      line.more = static_cast<std::uint8_t>(up_to(1)) & 1;
  }
  constexpr std::size_t kSeq = sizeof(line.seq);
  std::memcpy(place + kSeq, reinterpret_cast<const std::byte*>(&line) + kSeq, sizeof(line) - kSeq);
}

// A byte or a number of a line; the word is left alone, most often.
void Vandal::spoil_op_line() {
  const std::uint64_t line = layout_.op(random_.next() >> 1);
  if (!mischief_.rough && random_.one_in(2)) return tell_lies(line);
  const auto at = static_cast<std::uint64_t>(random_.between(8, 63));
  std::byte* place = segment_.data + line;
  if (random_.one_in(2)) {
    const std::uint64_t now = load<std::uint8_t>(place + at);
    place[at] = static_cast<std::byte>(value_like(now));
  } else if (mischief_.rough) {
    for (std::uint64_t i = at; i < 64; ++i) place[i] = static_cast<std::byte>(random_.below(256));
  } else {
    put_number(line + at / 4 * 4);
  }
}

void Vandal::spoil_record() {
  const int slot = random_.below(config_.slots);
  const auto areas =
      layout_.slot_areas(slot);  // off, marks, missing, lacking, counts, entries, bases
  const Range area = areas[static_cast<std::size_t>(random_.below(7))];
  if (area.bytes < 8) return;
  // The front is what is in use.
  const std::uint64_t reach =
      random_.one_in(2) ? std::min<std::uint64_t>(area.bytes, 64) : area.bytes;
  if (mischief_.rough && random_.one_in(2)) {
    return spoil_range({segment_.data + area.offset, area.bytes}, 256);
  }
  for (int n = random_.between(1, 3); n > 0; --n) {
    const std::uint64_t at = area.offset + random_.next() % (reach / 4) * 4;
    if (random_.one_in(3)) {  // 16-bit fields: experts and k
      std::byte* place = segment_.data + at + 2 * static_cast<std::uint64_t>(random_.below(2));
      const auto value = static_cast<std::uint16_t>(value_like(load<std::uint16_t>(place)));
      std::memcpy(place, &value, sizeof(value));
    } else {
      put_number(at);
    }
  }
}

void Vandal::spoil_range(const Area& area, std::uint64_t most) {
  if (area.bytes == 0) return;
  const std::uint64_t first = random_.next() % area.bytes;
  const std::uint64_t bytes =
      std::min(area.bytes - first, 1 + random_.next() % std::min(most, area.bytes));
  for (std::uint64_t i = 0; i < bytes; ++i) {
    area.data[first + i] = static_cast<std::byte>(random_.below(256));
  }
}

void Vandal::spoil_rows() {
  const auto areas = layout_.slot_areas(random_.below(config_.slots));
  const Range area = areas[random_.one_in(2) ? 5 : 6];  // x, y
  spoil_range({segment_.data + area.offset, area.bytes}, 4096);
}

}  // namespace ubep::test
