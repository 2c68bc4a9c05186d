#include "bench/neighbour/ranks.hpp"

#include <omp.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "bench/neighbour/gemm.hpp"
#include "tools/ubep/machine.hpp"
#include "ubep/ubep.hpp"

namespace ubep::bench {
namespace {

constexpr int kNotCounted = 2;
constexpr int kForeignAloneMs = 60;

void must(const Status& status) {
  if (!status.ok()) throw std::runtime_error(status.message());
}

class Rank {
 public:
  Rank(const Setting& setting, const Bootstrap& bootstrap, Ground& ground)
      : setting_(setting),
        ground_(ground),
        comm_(Communicator::create(bootstrap, {.num_experts = setting.experts,
                                               .max_tokens = setting.tokens,
                                               .max_hidden = setting.hidden,
                                               .max_topk = setting.topk})),
        before_(static_cast<std::size_t>(setting.gemm_rows)),
        experts_(static_cast<std::size_t>(setting.gemm_rows)) {
    const auto cpus = static_cast<int>(tools::usable_cpus().size());
    spins_ = setting.ranks * setting.threads <= cpus ? 2000 : 0;
    const auto elements =
        static_cast<std::size_t>(setting.tokens) * static_cast<std::size_t>(setting.hidden);
    x_.resize(elements);
    out_.resize(elements);
    std::uint32_t random = 1 + static_cast<std::uint32_t>(comm_.rank());
    for (int i = 0; i < setting.tokens * setting.topk; ++i) {
      random = random * 1664525U + 1013904223U;
      // Different experts for each k: every k has a range of its own.
      const int range = setting.experts / setting.topk;
      const int k = i % setting.topk;
      topk_idx_.push_back(k * range + static_cast<int>(random >> 16) % range);
      topk_weights_.push_back(0.125F);
    }
  }

  void run() {
    for (int block = 0; block <= setting_.blocks; ++block) {
      foreign(kForeignAlone, block == 0);
      for (int segment = 0; segment < num_segments; ++segment) measure(segment, block == 0);
    }
    ground_.meet(setting_.ranks);
  }

 private:
  // The foreign process works meanwhile, and all ranks sleep.
  void foreign(int segment, bool warm_up) {
    if (warm_up) return;
    meet();
    if (comm_.rank() == 0) {
      ground_.foreign.store(segment);
      std::this_thread::sleep_for(std::chrono::milliseconds(kForeignAloneMs));
      stop_foreign();
    }
    meet();
  }

  void stop_foreign() {
    ground_.foreign.store(Ground::kSleep);
    Ground::sleep_until([this] { return ground_.foreign_asleep.load() == 1; });
  }

  void meet() { ground_.meet(setting_.ranks); }

  void measure(int segment, bool warm_up) {
    const bool beside = segment == one_lane_beside || segment == all_lanes_beside;
    const bool all = segment == all_lanes || segment == all_lanes_beside;
    if (warm_up && beside) return;
    meet();
    if (beside && comm_.rank() == 0) {
      ground_.foreign.store(segment);
      Ground::sleep_until([this] { return ground_.foreign_asleep.load() == 0; });
    }
    meet();
    Times& times =
        ground_.times[static_cast<std::size_t>(comm_.rank())][static_cast<std::size_t>(segment)];
    const double cpu = cpu_seconds();
    const double begin = now();
    run_block(all, warm_up ? nullptr : &times);
    if (!warm_up) {
      times.wall += now() - begin;
      times.cpu += cpu_seconds() - cpu;
    }
    meet();
    if (beside && comm_.rank() == 0) stop_foreign();
  }

  // One parallel region: a caller's layers follow each other without leaving it.
  void run_block(bool all, Times* times) {
#pragma omp parallel num_threads(setting_.threads)
    for (int i = 0; i < setting_.cycles; ++i) {
      const int lane = omp_get_thread_num();
      const double begin = now();
      before_.run(lane, setting_.threads);
#pragma omp barrier
      const double dispatching = now();
      all ? dispatch_all(lane) : dispatch_one(lane);
      const double dispatched = now();
      run_experts(lane);
#pragma omp barrier
      const double combining = now();
      all ? combine_all(lane) : combine_one(lane);
      const double end = now();
      if (lane == 0 && times != nullptr && i >= kNotCounted && times->count < kMostTimes) {
        const auto at = static_cast<std::size_t>(times->count++);
        times->cycle[at] = end - begin;
        times->dispatch[at] = dispatched - dispatching;
        times->combine[at] = end - combining;
      }
    }
  }

  ConstRows x() const { return {x_.data(), setting_.tokens, setting_.hidden, DType::bf16}; }
  Rows out() { return {out_.data(), setting_.tokens, setting_.hidden, DType::bf16}; }
  Routing routing() const { return {topk_idx_, topk_weights_, setting_.topk}; }

  // One lane calls, the others wait at the barrier.
  void dispatch_one(int lane) {
    if (lane == 0) must(comm_.dispatch(x(), routing(), {}, handle_));
#pragma omp barrier
  }
  void combine_one(int lane) {
    if (lane == 0) must(comm_.combine(handle_, {.out = out()}));
#pragma omp barrier
  }

  // One lane starts, all step.
  void dispatch_all(int lane) {
    if (lane == 0) {
      Status status;
      for (int idle = 0;
           (status = comm_.start_dispatch(x(), routing(), {}, handle_)).code == Code::not_ready;) {
        if (comm_.step(0, setting_.threads) == 0 && ++idle > spins_) nap();
      }
      must(status);
    }
#pragma omp barrier
    help(lane);
#pragma omp barrier
  }
  void combine_all(int lane) {
    if (lane == 0) must(comm_.start_combine(handle_, {.out = out()}));
#pragma omp barrier
    help(lane);
#pragma omp barrier
  }

  // A lane that finds nothing to do for a while leaves its core to others, at the barrier.
  void help(int lane) {
    if (lane == 0) return must(comm_.wait(handle_));
    for (int idle = 0; idle <= spins_ && comm_.poll(handle_).code == Code::not_ready; ++idle) {
      if (comm_.step(lane, setting_.threads) > 0) idle = 0;
    }
  }

  static void nap() { std::this_thread::sleep_for(std::chrono::microseconds(50)); }

  // Every output is the row received; the weights are a product that all ranks alike have.
  void run_experts(int lane) {
    const Received& received = handle_.received();
    const Rows y = handle_.expert_output();
    const auto bytes = static_cast<std::size_t>(y.row_bytes());
    const std::int64_t first = received.num_rows * lane / setting_.threads;
    const std::int64_t end = received.num_rows * (lane + 1) / setting_.threads;
    for (std::int64_t i = first; i < end; ++i) std::memcpy(y.row(i), received.row(i), bytes);
    experts_.run(lane, setting_.threads);
  }

  const Setting& setting_;
  Ground& ground_;
  Communicator comm_;
  Handle handle_;
  Gemm before_;
  Gemm experts_;
  int spins_ = 0;  // steps of a lane that find nothing to do before it gives its core up
  std::vector<std::uint16_t> x_;
  std::vector<std::uint16_t> out_;
  std::vector<std::int32_t> topk_idx_;
  std::vector<float> topk_weights_;
};

}  // namespace

void run_rank(const Setting& setting, const Bootstrap& bootstrap, Ground& ground) {
  Rank(setting, bootstrap, ground).run();
}

void run_foreign(const Setting& setting, Ground& ground) {
  Gemm gemm(static_cast<std::size_t>(setting.gemm_rows));
  int segment = Ground::kSleep;
  while ((segment = ground.foreign.load()) != Ground::kEnd) {
    if (segment == Ground::kSleep) {
      ground.foreign_asleep.store(1);
      std::this_thread::sleep_for(std::chrono::microseconds(200));
      continue;
    }
    ground.foreign_asleep.store(0);
    ForeignSteps& sum = ground.steps[static_cast<std::size_t>(segment)];
    const double begin = now();
    int steps = 0;
    for (; ground.foreign.load() == segment; ++steps) gemm.run(0, 1);
    sum.steps += steps;
    sum.seconds += now() - begin;
  }
}

}  // namespace ubep::bench
