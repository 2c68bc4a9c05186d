// Two micro-batches: dispatch of one beside the experts and the combine of the other, against the
// same work one after the other.
//
//   overlap [--ranks 4] [--tokens 64] [--hidden 1024] [--expert-us 200] [--layers 6] [--rounds 30]
//     [--slots 2] [--uneven-us 0]
//
// A round is `layers` layers of both micro-batches, the output of a layer being the input of the
// next. Rounds of both kinds take turns; their outputs must be the same bits. Nothing moves while
// nobody calls step(): the experts do so now and then. So overlap hides waiting for other ranks,
// not the copying, which the caller's cores do anyway; where ranks share cores, or are in step,
// there may be nothing to win. --uneven-us makes the experts of one micro-batch slower on even
// ranks and those of the other on odd ones: one after the other, everybody waits for both.
#include <time.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

#include "ubep/ubep.hpp"

namespace {

using Clock = std::chrono::steady_clock;
using Microseconds = std::chrono::duration<double, std::micro>;

constexpr int kTopk = 4;
constexpr int kExpertsPerRank = 4;
constexpr int kSliceUs = 20;  // of the experts, between two steps

struct Options {
  int ranks = 4;
  int tokens = 64;
  int hidden = 1024;
  int expert_us = 200;  // of the experts of a rank, for one micro-batch
  int layers = 6;
  int rounds = 30;
  int slots = 2;
  int uneven_us = 0;  // more for one micro-batch on even ranks, for the other on odd ones
};

// What this thread has had of a CPU.
double cpu_us() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) * 1e-3;
}

bool parse(int argc, char** argv, Options& options) {
  const struct {
    const char* name;
    int* value;
    int least;
  } known[] = {{"--ranks", &options.ranks, 1},   {"--tokens", &options.tokens, 0},
               {"--hidden", &options.hidden, 1}, {"--expert-us", &options.expert_us, 0},
               {"--layers", &options.layers, 1}, {"--rounds", &options.rounds, 1},
               {"--slots", &options.slots, 2},   {"--uneven-us", &options.uneven_us, 0}};
  for (int i = 1; i < argc; i += 2) {
    const auto* const found = std::find_if(std::begin(known), std::end(known), [&](const auto& o) {
      return std::strcmp(o.name, argv[i]) == 0;
    });
    if (found == std::end(known) || i + 1 == argc) return false;
    const char* const end = argv[i + 1] + std::strlen(argv[i + 1]);
    const auto [stop, error] = std::from_chars(argv[i + 1], end, *found->value);
    if (error != std::errc{} || stop != end || *found->value < found->least) return false;
  }
  return options.ranks <= 64 && options.slots <= 16;
}

// Half of a rank's tokens. Two buffers in turn: tokens must stay until their combine is complete.
struct MicroBatch {
  int number = 0;
  std::vector<float> rows[2];
  int now = 0;  // rows[now] is the input of the next layer
  std::vector<std::int32_t> topk_idx;
  std::vector<float> topk_weights;
  ubep::Handle handle;
};

class Worker {
 public:
  Worker(const ubep::Bootstrap& bootstrap, const Options& options)
      : options_(options),
        comm_(ubep::Communicator::create(bootstrap, {.num_experts = kExpertsPerRank * options.ranks,
                                                     .max_tokens = options.tokens,
                                                     .max_hidden = options.hidden,
                                                     .max_dtype = ubep::DType::fp32,
                                                     .max_topk = kTopk,
                                                     .slots = options.slots})) {}

  // The same tokens at the beginning of each round.
  void fill(MicroBatch& batch, int number) const {
    batch.number = number;
    batch.now = 0;
    for (auto& rows : batch.rows) rows.assign(size(), 0);
    std::uint32_t state = static_cast<std::uint32_t>(comm_.rank() * 2 + number + 1);
    const auto next = [&state] { return (state = state * 1664525U + 1013904223U) >> 16; };
    for (float& value : batch.rows[0]) value = static_cast<float>(next() % 256) / 256;
    batch.topk_idx.clear();
    for (int t = 0; t < options_.tokens; ++t) {
      const auto experts = static_cast<std::uint32_t>(kExpertsPerRank * options_.ranks);
      const std::uint32_t first = next();
      for (std::uint32_t k = 0; k < kTopk; ++k) {
        batch.topk_idx.push_back(static_cast<std::int32_t>((first + k * 3) % experts));
      }
    }
    batch.topk_weights.assign(batch.topk_idx.size(), 1.0F / kTopk);
  }

  void round_in_sequence(MicroBatch& a, MicroBatch& b) {
    for (int layer = 0; layer < options_.layers; ++layer) {
      for (MicroBatch* batch : {&a, &b}) {
        start_dispatch(*batch);
        wait(*batch);
        run_experts(*batch);
        start_combine(*batch);
        wait(*batch);
      }
    }
  }

  // [overlap]
  // All ranks start their operations in this order: the dispatch and combine of a, of b, in turn.
  void round_with_overlap(MicroBatch& a, MicroBatch& b) {
    start_dispatch(a);
    for (int layer = 0; layer < options_.layers; ++layer) {
      wait(a);
      start_dispatch(b);  // travels while the experts work on a
      run_experts(a);
      start_combine(a);  // travels while the experts work on b
      wait(b);
      run_experts(b);
      wait(a);  // its slot is free now
      if (layer + 1 < options_.layers) start_dispatch(a);
      start_combine(b);  // beside the dispatch of a
      wait(b);
    }
  }

  void start_dispatch(MicroBatch& batch) {
    const ubep::Routing routing{batch.topk_idx, batch.topk_weights, kTopk};
    insist([&] {
      return comm_.start_dispatch(view(batch.rows[batch.now]), routing,
                                  {.layout = ubep::Layout::expert_major}, batch.handle);
    });
  }

  void start_combine(MicroBatch& batch) {
    batch.now = 1 - batch.now;
    insist([&] { return comm_.start_combine(batch.handle, {.out = view(batch.rows[batch.now])}); });
  }

  // Again while peers have not given the slot back. What was started goes on meanwhile.
  template <class Start>
  void insist(const Start& start) {
    const auto deadline = Clock::now() + std::chrono::seconds(30);
    for (;;) {
      const ubep::Status status = start();
      if (status.code != ubep::Code::not_ready || Clock::now() > deadline) {
        return status.or_throw();
      }
      if (comm_.step() == 0) std::this_thread::yield();
    }
  }
  // [/overlap]

  void wait(MicroBatch& batch) { comm_.wait(batch.handle).or_throw(); }

 private:
  std::size_t size() const {
    return static_cast<std::size_t>(options_.tokens) * static_cast<std::size_t>(options_.hidden);
  }
  ubep::Rows view(std::vector<float>& rows) const {
    return {rows.data(), options_.tokens, options_.hidden, ubep::DType::fp32};
  }

  // A stand-in: each row times 1.01, then it computes for its time, of its CPU rather than of the
  // clock. step() in between lets the operation that is under way go on.
  void run_experts(MicroBatch& batch) {
    const ubep::Received& received = batch.handle.received();
    const ubep::Rows output = batch.handle.expert_output();
    for (std::int64_t i = 0; i < received.num_rows; ++i) {
      const auto* const x = reinterpret_cast<const float*>(received.row(i));
      auto* const y = reinterpret_cast<float*>(output.row(i));
      for (int h = 0; h < options_.hidden; ++h) y[h] = 1.01F * x[h];
      if (i % 16 == 15) comm_.step();
    }
    const int more = batch.number == comm_.rank() % 2 ? options_.uneven_us : 0;
    for (int left = options_.expert_us + more; left > 0; left -= kSliceUs) {
      const double end = cpu_us() + std::min(left, kSliceUs);
      while (cpu_us() < end) {
      }
      comm_.step();
    }
  }

  Options options_;
  ubep::Communicator comm_;
};

struct Quartiles {
  double low, median, high;
};

Quartiles quartiles_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const auto at = [&](std::size_t quarter) { return values[(values.size() - 1) * quarter / 4]; };
  return {at(1), at(2), at(3)};
}

void print(const char* what, const std::vector<double>& values) {
  const Quartiles q = quartiles_of(values);
  std::printf("%-22s %10.1f  (%.1f .. %.1f)\n", what, q.median, q.low, q.high);
}

int run(const ubep::Bootstrap& bootstrap, const Options& options) {
  Worker worker(bootstrap, options);
  MicroBatch batches[2];
  std::vector<double> sequence, overlap, saved;
  std::vector<float> expected[2];
  const auto timed = [&](auto round) {
    for (int i = 0; i < 2; ++i) worker.fill(batches[i], i);
    const auto begin = Clock::now();
    round();
    return Microseconds(Clock::now() - begin).count() / options.layers;
  };
  for (int i = -2; i < options.rounds; ++i) {  // two to warm up
    const double one = timed([&] { worker.round_in_sequence(batches[0], batches[1]); });
    for (int b = 0; b < 2; ++b) expected[b] = batches[b].rows[batches[b].now];
    const double other = timed([&] { worker.round_with_overlap(batches[0], batches[1]); });
    for (int b = 0; b < 2; ++b) {
      if (batches[b].rows[batches[b].now] == expected[b]) continue;
      std::printf("rank %d: another result with overlap\n", bootstrap.rank);
      return 1;
    }
    if (i < 0) continue;
    sequence.push_back(one);
    overlap.push_back(other);
    saved.push_back(one - other);
  }
  if (bootstrap.rank != 0) return 0;
  std::printf(
      "%d ranks, 2 x %d tokens x %d fp32, top-%d, experts %d us a micro-batch, uneven by %d\n"
      "us a layer of both micro-batches: median (quartiles) of %d rounds, as rank 0 sees them\n",
      options.ranks, options.tokens, options.hidden, kTopk, options.expert_us, options.uneven_us,
      options.rounds);
  print("one after the other", sequence);
  print("with overlap", overlap);
  print("saved (< 0: lost)", saved);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (!parse(argc, argv, options)) {
    std::fprintf(stderr,
                 "usage: %s [--ranks 1..64] [--tokens N] [--hidden N] [--expert-us N] [--layers N] "
                 "[--rounds N] [--slots 2..16] [--uneven-us N]\n",
                 argv[0]);
    return 2;
  }
  const auto body = [&](const ubep::Bootstrap& bootstrap) {
    const int status = run(bootstrap, options);
    std::fflush(stdout);
    return status;
  };
  for (const int status : ubep::fork_ranks(options.ranks, body)) {
    if (status != 0) return status;
  }
  return 0;
}
