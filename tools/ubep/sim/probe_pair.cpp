#include "tools/ubep/sim/probe_pair.hpp"

#include <fmt/format.h>
#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <vector>

#include "sim/library_parts.hpp"
#include "tools/ubep/clock.hpp"
#include "tools/ubep/input_error.hpp"
#include "tools/ubep/machine.hpp"
#include "tools/ubep/summary.hpp"

namespace ubep::tools {
namespace {

constexpr int kBatches = 40;
constexpr int kTrips = 100;  // of a batch: a preemption spoils one batch, not all

// Lines of their own (two: some CPUs fetch pairs). Each has one writer, the rank of that index.
struct alignas(128) Line {
  std::atomic<std::uint32_t> word{0};
};
constexpr std::size_t kLines = 8;  // that come with a word
struct alignas(64) Payload {
  std::array<std::uint32_t, kLines* 16> bytes = {};
};
struct Words {
  std::array<Line, 2> words;
  std::array<Payload, 2> payloads;  // beside them
};
static_assert(sizeof(Words) <= kWordBytes);

struct Peer {
  Stage& stage;
  Words& words;
  std::size_t rank;
  Store store;
  std::uint32_t step = 0;
};

double p50(std::vector<double> values) { return summarize(std::move(values)).p50; }

void await(Peer& p) {
  const std::atomic<std::uint32_t>& word = p.words.words[1 - p.rank].word;
  for (std::uint32_t spins = 1; word.load() < p.step; ++spins) {
    if (spins % 65536 == 0 && p.stage.failed()) throw InputError("the other rank has ended");
  }
}

// The payload is read after the word: its value goes into the answer, so that no CPU is done
// before.
std::uint32_t take(Peer& p, bool with_lines) {
  await(p);
  if (!with_lines) return 0;
  const volatile std::uint32_t* bytes = p.words.payloads[1 - p.rank].bytes.data();
  // Where the next line is stands in the one before.
  std::uint32_t next = 0;
  for (std::size_t i = 0; i < kLines; ++i) next = bytes[next * 16];
  return next;
}

void give(Peer& p, bool with_lines, std::uint32_t seen) {
  if (with_lines) {
    alignas(64) Payload payload;
    // seen is 0: it is the answer that must wait for all of them.
    for (std::size_t i = 0; i < kLines; ++i) {
      payload.bytes[i * 16] = static_cast<std::uint32_t>((i + 1) % kLines) + seen;
    }
    sim::copy_row(p.store, reinterpret_cast<std::byte*>(&p.words.payloads[p.rank]),
                  reinterpret_cast<const std::byte*>(&payload), sizeof payload);
    sim::end_rows();
  }
  p.words.words[p.rank].word.store(p.step);
}

double one_way(Peer& p, bool with_lines) {
  std::vector<double> batches;
  for (int batch = 0; batch < kBatches; ++batch) {
    const double begin = now();
    std::uint32_t seen = 0;
    for (int i = 0; i < kTrips; ++i) {
      ++p.step;
      if (p.rank == 0) give(p, with_lines, seen);
      seen = take(p, with_lines);
      if (p.rank == 1) give(p, with_lines, seen);
    }
    batches.push_back((now() - begin) / (2 * kTrips));
  }
  return p50(std::move(batches));
}

template <class Body>
double of_each(Body body) {
  std::vector<double> batches;
  for (int batch = 0; batch < kBatches; ++batch) {
    const double begin = now();
    for (int i = 0; i < kTrips; ++i) body(i);
    batches.push_back((now() - begin) / kTrips);
  }
  return p50(std::move(batches));
}

}  // namespace

SharedBytes::SharedBytes(std::size_t bytes) : bytes_(std::max<std::size_t>(bytes, 1)) {
  void* const area =
      mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (area == MAP_FAILED) throw std::bad_alloc();
  data_ = static_cast<std::byte*>(area);
  // In one go, as the library does, so that pages lie side by side where there is room: rows that
  // were touched one by one were a third slower to sum.
  std::memset(data_, 0, bytes_);
}

SharedBytes::~SharedBytes() { munmap(data_, bytes_); }

void pin_to(int index) {
  const std::vector<int> cpus = usable_cpus();
  const auto i = static_cast<std::size_t>(index);
  if (i >= cpus.size() || cpus[i] >= CPU_SETSIZE) {
    throw InputError(fmt::format("ubep probe needs 2 CPUs, this process may use {}", cpus.size()));
  }
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<std::size_t>(cpus[i]), &set);
  if (sched_setaffinity(0, sizeof set, &set) != 0) {
    throw InputError(fmt::format("cannot stay on CPU {}: {}", cpus[i], std::strerror(errno)));
  }
}

double clock_cost() {
  return of_each([](int) { (void)now(); });
}

WordTimes measure_words(Stage& stage, int rank, Store store, std::byte* page) {
  if (rank == 0) new (page) Words;
  if (!stage.barrier(rank)) throw InputError("the other rank has ended");
  Peer peer{stage, *reinterpret_cast<Words*>(page), static_cast<std::size_t>(rank), store};
  WordTimes times;
  (void)one_way(peer, false);  // both are awake now
  times.one_way = one_way(peer, false);
  times.line = std::max(one_way(peer, true) - times.one_way, 0.0) / kLines;
  std::atomic<std::uint64_t> own{0};
  times.store = of_each([&](int i) { own.store(static_cast<std::uint64_t>(i)); });
  times.look = of_each([&](int) { (void)own.load(); });
  Payload own_lines;
  auto* const shared = reinterpret_cast<std::byte*>(&peer.words.payloads[peer.rank]);
  const auto* const line = reinterpret_cast<const std::byte*>(&own_lines);
  times.fence = of_each([&](int) {
    sim::copy_row(store, shared, line, 64);
    sim::end_rows();
  });
  return times;
}

}  // namespace ubep::tools
