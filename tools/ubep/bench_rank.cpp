#include "tools/ubep/bench_rank.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <numeric>

#include "tools/ubep/clock.hpp"
#include "tools/ubep/exit_code.hpp"
#include "tools/ubep/lane_clock.hpp"
#include "tools/ubep/lane_team.hpp"
#include "tools/ubep/stand_in.hpp"

namespace ubep::tools {
namespace {

constexpr int kMostTraced = 2000;  // iterations of one variant
constexpr int kSkipPerBlock = 2;   // of a free-running block

// Proportional set size: pages shared by n processes count as 1/n in each.
double resident_bytes() {
  std::ifstream file("/proc/self/smaps_rollup");
  std::string key;
  while (file >> key) {
    double kib = 0;
    if (key == "Pss:" && file >> kib) return kib * 1024;
  }
  return 0;
}

struct Stopped {};  // another rank failed first

// A row matrix of its own memory.
struct Tensor {
  Tensor(std::int64_t rows, std::int64_t hidden, DType dtype)
      : bytes(static_cast<std::size_t>(rows * hidden) * size_of(dtype)),
        view{bytes.data(), rows, hidden, dtype} {}
  std::vector<std::byte> bytes;
  Rows view;
};

// With what has been in flight on it: a handle belongs to one communicator.
struct Setting {
  Communicator comm;
  Handle handle;
};

int most_lanes(const BenchPlan& plan) {
  int most = 1;
  for (const BenchVariant& variant : plan.variants) most = std::max(most, variant.lanes);
  return most;
}

// Names of their own, but for the first.
std::vector<Setting> make_settings(const Bootstrap& bootstrap, const BenchPlan& plan) {
  std::vector<Setting> settings;
  for (std::size_t i = 0; i < plan.adjusts.size(); ++i) {
    Bootstrap own = bootstrap;
    if (i != 0) own.job += fmt::format("/{}", i);
    settings.push_back({Communicator::create(own, communicator_options(plan, i)), {}});
  }
  return settings;
}

class RankBench {
 public:
  RankBench(const Bootstrap& bootstrap, const BenchPlan& plan, Stage& stage)
      : plan_(plan),
        stage_(stage),
        rank_(bootstrap.rank),
        patience_(std::chrono::duration<double>(bootstrap.timeout).count() + 1),
        numbers_(stage.numbers(bootstrap.rank)),
        clock_(most_lanes(plan)),
        settings_(make_settings(bootstrap, plan)),
        traced_(plan.variants.size()),
        team_(most_lanes(plan)),
        x_(tokens(), plan.options.hidden, plan.options.dtype_value),
        out_(tokens(), plan.options.hidden, plan.options.dtype_value) {
    for (std::size_t e = 0; e < plan.expert_rank.size(); ++e) {
      if (plan.expert_rank[e] == rank_) experts_.push_back(static_cast<std::int32_t>(e));
    }
    for (std::size_t set = 0; set < plan.routing.size(); ++set) {
      masters_.emplace_back(tokens(), plan.options.hidden, plan.options.dtype_value);
      make_activations({rank_, static_cast<int>(set)}, 0, masters_.back().view);
    }
    use(plan.variants[0]);
    host_of_ = comm().facts().host_of;
    numbers_[BenchScalars::flag_one_way_ns] = comm().facts().flag_one_way_ns;
    numbers_[BenchScalars::store_far] = comm().facts().store == Store::far ? 1 : 0;
  }

  void run() {
    meet();
    first_call();
    for (std::size_t v = 0; v < plan_.variants.size(); ++v) {
      const BenchVariant& variant = plan_.variants[v];
      use(variant);
      if (plan_.options.check) check(variant);
      for (int i = 0; i < std::max(plan_.options.warmup, 1); ++i) iterate(variant, i);
      take_notes(v);
      count_crossed(v);
    }
    for (int first = 0; first < plan_.options.iters; first += kBlock) {
      const int end = std::min(first + kBlock, plan_.options.iters);
      for (std::size_t v = 0; v < plan_.variants.size(); ++v) {
        use(plan_.variants[v]);
        measure_phases(v, first, end);
        measure_cycle(v, first, end);
        if (plan_.options.ablate && first < kMostTraced) trace_phases(v, first, end);
      }
    }
    if (plan_.options.ablate) {
      for (std::size_t v = 0; v < plan_.variants.size(); ++v) tell_spent(v);
    }
    numbers_[BenchScalars::resident_bytes] = resident_bytes();
    meet();  // nobody leaves while others still measure
  }

 private:
  int tokens() const { return plan_.tokens[static_cast<std::size_t>(rank_)]; }
  std::size_t set_of(int iteration) const {
    return static_cast<std::size_t>(iteration) % plan_.routing.size();
  }
  Communicator& comm() { return settings_[setting_].comm; }
  Handle& handle() { return settings_[setting_].handle; }
  // Bytes to other hosts move only while their sender steps.
  void meet() {
    const auto step = [this] { (void)comm().step(); };
    const bool met =
        stage_.hosts() != nullptr ? stage_.barrier(rank_, step) : stage_.barrier(rank_);
    if (!met) throw Stopped{};
  }

  // From now on, the variant's communicator and lanes. Nothing is pending.
  void use(const BenchVariant& variant) {
    setting_ = variant.communicator;
    lanes_ = variant.lanes;
    comm().set_lanes(lanes_, variant.roles, variant.order);
    team_.use(comm(), lanes_);
  }

  // Until peers have given back what the attempt takes. Bounded: they may be gone.
  template <class Attempt>
  Status insist(const Attempt& attempt) {
    double deadline = 0;
    for (;;) {
      Status status = attempt();
      if (status.code != Code::not_ready) return status;
      if (stage_.failed()) throw Stopped{};
      if (deadline == 0) deadline = now() + patience_;
      if (now() > deadline) {
        status.code = Code::timeout;
        return status;
      }
      if (comm().step() == 0) sched_yield();
    }
  }

  // The caller's layer before the MoE: new activations in the place that the variant says.
  ConstRows write_activations(const BenchVariant& variant, std::size_t set) {
    const Tensor& master = masters_[set];
    Rows x = x_.view;
    if (variant.in_place) {
      must(insist([&] { return comm().input(x.num_rows, x.hidden, x.dtype, x); }));
    }
    const auto bytes = static_cast<std::size_t>(x.row_bytes());
    for (std::int64_t t = 0; t < x.num_rows; ++t) {
      std::memcpy(x.row(t), master.view.row(t), bytes);
    }
    return x;
  }

  void dispatch(const BenchVariant& variant, const ConstRows& x, std::size_t set) {
    if (lanes_ == 1) {
      return must(comm().dispatch(x, routing(set), options_of(variant), handle()));
    }
    start_dispatch(variant, x, set);
    must(team_.wait(handle()));
  }

  Routing routing(std::size_t set) const {
    const RankRouting& routing = plan_.routing[set][static_cast<std::size_t>(rank_)];
    return {routing.topk_idx, routing.topk_weights, plan_.options.topk};
  }
  DispatchOptions options_of(const BenchVariant& variant) const {
    return {.layout = variant.path.layout,
            .path = variant.path.path,
            .quant = plan_.options.quant_value};
  }

  void start_dispatch(const BenchVariant& variant, const ConstRows& x, std::size_t set) {
    must(insist(
        [&] { return comm().start_dispatch(x, routing(set), options_of(variant), handle()); }));
  }

  void combine() {
    if (lanes_ == 1) return must(comm().combine(handle(), {.out = out_.view}));
    must(comm().start_combine(handle(), {.out = out_.view}));
    must(team_.wait(handle()));
  }

  // A layer in rounds. When the last round's experts had their rows and when they were done, as if
  // the experts of rounds before had taken no time.
  struct LayerTimes {
    double experts_begin = 0;
    double experts_end = 0;
  };
  LayerTimes run_layer(const BenchVariant& variant, const ConstRows& x, std::size_t set) {
    LayerTimes times;
    double spent = 0;  // by experts of rounds before
    rows_received_ = 0;
    const auto experts = [&](Handle& h) {
      spent += times.experts_end - times.experts_begin;
      times.experts_begin = now();
      rows_received_ += rows_of(h.received());
      run_experts(h.received(), experts_, h.expert_output());
      times.experts_end = now();
    };
    must(comm().run_layer(x, routing(set), options_of(variant), {experts, out_.view}, handle()));
    times.experts_begin -= spent;
    times.experts_end -= spent;
    layer_spent_ = spent;
    return times;
  }

  void measure_layer(std::size_t v, int iteration) {
    const BenchVariant& variant = plan_.variants[v];
    const ConstRows x = write_activations(variant, set_of(iteration));
    meet();
    time(v, iteration, BenchTimes::dispatch_begin) = now();
    const LayerTimes times = run_layer(variant, x, set_of(iteration));
    time(v, iteration, BenchTimes::combine_end) = now() - layer_spent_;
    time(v, iteration, BenchTimes::dispatch_end) = times.experts_begin;
    time(v, iteration, BenchTimes::combine_begin) = times.experts_end;
  }

  void iterate(const BenchVariant& variant, int iteration) {
    const std::size_t set = set_of(iteration);
    if (plan_.layers) {
      (void)run_layer(variant, write_activations(variant, set), set);
      return;
    }
    dispatch(variant, write_activations(variant, set), set);
    rows_received_ = rows_of(handle().received());
    run_experts(handle().received(), experts_, handle().expert_output());
    combine();
  }

  void first_call() {
    const ConstRows x = write_activations(plan_.variants[0], 0);
    meet();
    const double begin = now();
    if (plan_.layers) {
      const LayerTimes times = run_layer(plan_.variants[0], x, 0);
      const double experts = times.experts_end - times.experts_begin + layer_spent_;
      numbers_[BenchScalars::first_call] = now() - begin - experts;
      return;
    }
    dispatch(plan_.variants[0], x, 0);
    const double dispatched = now();
    run_experts(handle().received(), experts_, handle().expert_output());
    const double ran = now();
    combine();
    numbers_[BenchScalars::first_call] = dispatched - begin + (now() - ran);
  }

  double& time(std::size_t variant, int iteration, BenchTimes::Field field) {
    return numbers_[times_at(plan_, variant, iteration) + field];
  }

  // Of the variant's latest operation.
  void take_notes(std::size_t v) {
    const OperationStats stats = handle().stats();
    double* notes = &numbers_[notes_at(v)];
    notes[BenchNotes::path] = static_cast<double>(stats.path);
    notes[BenchNotes::far] = stats.store == Store::far ? 1 : 0;
    notes[BenchNotes::rows] = static_cast<double>(rows_received_);
    notes[BenchNotes::dispatch_copied] = static_cast<double>(stats.dispatch_copied_bytes);
    notes[BenchNotes::combine_copied] = static_cast<double>(stats.combine_copied_bytes);
    notes[BenchNotes::lanes_count] = stats.roles.count;
    notes[BenchNotes::lanes_send] = stats.roles.send;
    notes[BenchNotes::lanes_receive] = stats.roles.receive;
    std::strncpy(reinterpret_cast<char*>(notes + BenchNotes::reason), stats.reason,
                 BenchNotes::kReasonBytes - 1);
  }

  // What this rank sends to other hosts in a dispatch and its combine, averaged over the sets. What
  // it gives back at its next call counts there.
  void count_crossed(std::size_t v) {
    if (stage_.hosts() == nullptr) return;
    meet();
    const std::uint64_t before = comm().facts().host_bytes;
    for (std::size_t set = 0; set < plan_.routing.size(); ++set) {
      iterate(plan_.variants[v], static_cast<int>(set));
    }
    meet();
    numbers_[notes_at(v) + BenchNotes::crossed] =
        static_cast<double>(comm().facts().host_bytes - before) /
        static_cast<double>(plan_.routing.size());
  }

  // Dispatch and combine, each between barriers of the harness.
  void measure_phases(std::size_t v, int first, int end) {
    const BenchVariant& variant = plan_.variants[v];
    for (int i = first; i < end; ++i) {
      if (plan_.layers) {
        measure_layer(v, i);
        continue;
      }
      const ConstRows x = write_activations(variant, set_of(i));
      meet();
      time(v, i, BenchTimes::dispatch_begin) = now();
      dispatch(variant, x, set_of(i));
      time(v, i, BenchTimes::dispatch_end) = now();
      run_experts(handle().received(), experts_, handle().expert_output());
      meet();
      time(v, i, BenchTimes::combine_begin) = now();
      combine();
      time(v, i, BenchTimes::combine_end) = now();
    }
  }

  void tell_spent(std::size_t v) {
    double* notes = &numbers_[notes_at(v)];
    notes[BenchNotes::traced] = clock_.told() ? 1 : 0;
    const auto tell = [notes](BenchNotes::Field field, const Breakdown& b) {
      double* to = std::copy(b.us.begin(), b.us.end(), notes + field);
      to[0] = b.last_row_mean;
      to[1] = b.last_row_max;
    };
    tell(BenchNotes::dispatch_spent, typical(traced_[v].dispatch));
    tell(BenchNotes::combine_spent, typical(traced_[v].combine));
  }

  // The same again for the breakdown of the lanes' time: reading clocks takes time, too. What a
  // start does is charged to counting; with one lane, rows that it stores at once are part of it.
  void trace_phases(std::size_t v, int first, int end) {
    const BenchVariant& variant = plan_.variants[v];
    comm().set_tracer(&clock_);
    for (int i = first; i < end; ++i) {
      const ConstRows x = write_activations(variant, set_of(i));
      meet();
      clock_.begin(lanes_);
      start_dispatch(variant, x, set_of(i));
      clock_.started(Activity::count);
      must(team_.wait(handle()));
      traced_[v].dispatch.push_back(clock_.end());
      run_experts(handle().received(), experts_, handle().expert_output());
      meet();
      clock_.begin(lanes_);
      must(comm().start_combine(handle(), {.out = out_.view}));
      clock_.started(Activity::count);
      must(team_.wait(handle()));
      traced_[v].combine.push_back(clock_.end());
    }
    comm().set_tracer(nullptr);
  }

  // Whole cycles, back to back: only the library synchronises.
  void measure_cycle(std::size_t v, int first, int end) {
    meet();
    const double cpu = cpu_seconds();
    const double begin = now();
    for (int i = first - kSkipPerBlock; i < end; ++i) {
      if (i >= first) time(v, i, BenchTimes::cycle_begin) = now();
      iterate(plan_.variants[v], std::max(i, 0));
      if (i >= first) time(v, i, BenchTimes::cycle_end) = now();
    }
    numbers_[BenchScalars::wall_seconds] += now() - begin;
    numbers_[BenchScalars::cpu_seconds] += cpu_seconds() - cpu;
  }

  void check(const BenchVariant& variant) {
    for (std::size_t set = 0; set < plan_.routing.size(); ++set) {
      std::fill(out_.bytes.begin(), out_.bytes.end(), std::byte{0xFF});
      const ConstRows x = write_activations(variant, set);
      if (plan_.layers) {
        (void)run_layer(variant, x, set);
        check_combined(variant, set);
        continue;
      }
      dispatch(variant, x, set);
      check_received(variant, set);
      run_experts(handle().received(), experts_, handle().expert_output());
      combine();
      check_combined(variant, set);
    }
  }

  // (source, token) of every row that must be here, in the order of the layout.
  std::vector<std::pair<int, std::int64_t>> expected_rows(const BenchVariant& variant,
                                                          std::size_t set) const {
    std::vector<std::pair<int, std::int64_t>> rows;
    const auto topk = static_cast<std::size_t>(plan_.options.topk);
    const auto add = [&](auto wanted, bool once) {
      for (std::size_t q = 0; q < plan_.tokens.size(); ++q) {
        const auto& idx = plan_.routing[set][q].topk_idx;
        for (std::size_t i = 0; i < idx.size(); ++i) {
          if (idx[i] < 0 || !wanted(idx[i])) continue;
          rows.emplace_back(static_cast<int>(q), i / topk);
          if (once) i += topk - 1 - i % topk;
        }
      }
    };
    if (variant.path.path == Path::allgather) {
      for (std::size_t q = 0; q < plan_.tokens.size(); ++q) {
        for (int t = 0; t < plan_.tokens[q]; ++t) rows.emplace_back(static_cast<int>(q), t);
      }
    } else if (variant.path.layout == Layout::rank_major) {
      add([&](std::int32_t e) { return plan_.expert_rank[static_cast<std::size_t>(e)] == rank_; },
          true);
    } else {
      for (std::int32_t mine : experts_) add([&](std::int32_t e) { return e == mine; }, false);
    }
    return rows;
  }

  // Without padding.
  static std::int64_t rows_of(const Received& received) {
    if (!is_by_expert(received.layout)) return received.num_rows;
    return std::accumulate(received.expert_counts.begin(), received.expert_counts.end(),
                           std::int64_t{0});
  }

  void check_received(const BenchVariant& variant, std::size_t set) {
    const Received& received = handle().received();
    const auto expected = expected_rows(variant, set);
    std::vector<std::int64_t> places;
    if (is_by_expert(received.layout)) {
      for (std::size_t e = 0; e < experts_.size(); ++e) {
        for (int j = 0; j < received.expert_counts[e]; ++j) {
          places.push_back(received.expert_offsets[e] + j);
        }
      }
    } else {
      for (std::int64_t i = 0; i < received.num_rows; ++i) places.push_back(i);
    }
    if (places.size() != expected.size()) {
      numbers_[BenchScalars::mismatches] += 1;
      return;
    }
    Tensor row(1, plan_.options.hidden, plan_.options.dtype_value);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      make_activations({expected[i].first, static_cast<int>(set)}, expected[i].second, row.view);
      const std::vector<std::byte> want = record_of(row.view);
      if (std::memcmp(received.row(places[i]), want.data(), want.size()) != 0) {
        numbers_[BenchScalars::mismatches] += 1;
      }
    }
  }

  // What travels for a token.
  std::vector<std::byte> record_of(const ConstRows& token) const {
    const Quant quant = plan_.options.quant_value;
    if (quant == Quant::none) return {token.row(0), token.row(0) + token.row_bytes()};
    std::vector<std::byte> record(
        static_cast<std::size_t>(quantized_row_bytes(quant, token.hidden)));
    quantize_row(quant, token.data, token.dtype, token.hidden, record.data());
    return record;
  }

  // Which elements of a combined token are not exactly what `values`, those that its experts saw,
  // must give; and how far it is from what `x`, before quantisation, would have given.
  void check_token(const TokenChoice& choice, const ConstRows& x, std::int64_t token) {
    const Quant quant = plan_.options.quant_value;
    std::vector<float> exact(static_cast<std::size_t>(x.hidden));
    expected_token(choice, x, token, exact);
    std::vector<float> expected = exact;
    if (quant != Quant::none) {
      const ConstRows one{x.row(token), 1, x.hidden, x.dtype};
      Tensor seen(1, x.hidden, x.dtype);
      dequantize_row(quant, record_of(one).data(), x.dtype, x.hidden, seen.view.data);
      expected_token(choice, seen.view, 0, expected);
    }
    bool differs = false;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      std::byte want[sizeof(float)];
      store_element(want, 0, x.dtype, expected[i]);
      const std::byte* got = out_.view.row(token) + i * size_of(x.dtype);
      differs = differs || std::memcmp(got, want, size_of(x.dtype)) != 0;
      const double a = 1.0 + load_element(got, 0, x.dtype);
      const double b = 1.0 + exact[i];
      numbers_[BenchScalars::dot_actual_expected] += a * b;
      numbers_[BenchScalars::dot_actual] += a * a;
      numbers_[BenchScalars::dot_expected] += b * b;
    }
    if (differs) numbers_[BenchScalars::mismatches] += 1;
  }

  void check_combined(const BenchVariant& variant, std::size_t set) {
    const RankRouting& routing = plan_.routing[set][static_cast<std::size_t>(rank_)];
    const auto topk = static_cast<std::size_t>(plan_.options.topk);
    for (std::int64_t t = 0; t < tokens(); ++t) {
      const auto first = static_cast<std::size_t>(t) * topk;
      check_token({.topk_idx = std::span(routing.topk_idx).subspan(first, topk),
                   .topk_weights = std::span(routing.topk_weights).subspan(first, topk),
                   .expert_rank = plan_.expert_rank,
                   .layout = variant.path.layout,
                   .ranks = static_cast<int>(plan_.tokens.size()),
                   .host_of = host_of_},
                  masters_[set].view, t);
    }
  }

  const BenchPlan& plan_;
  Stage& stage_;
  int rank_;
  double patience_;  // s
  std::span<double> numbers_;
  LaneClock clock_;                // before the communicators that tell it
  std::vector<Setting> settings_;  // one per BenchPlan::adjusts
  std::size_t setting_ = 0;        // the one in use
  int lanes_ = 1;
  struct Traced {
    std::vector<Breakdown> dispatch;  // [iterations]
    std::vector<Breakdown> combine;
  };
  std::vector<Traced> traced_;  // [variants]
  LaneTeam team_;               // after all that its threads touch
  std::int64_t rows_received_ = 0;
  double layer_spent_ = 0;
  std::vector<int> host_of_;           // sums are made per_host; empty: all on one
  std::vector<std::int32_t> experts_;  // global ids of the local ones
  std::vector<Tensor> masters_;        // one per set
  Tensor x_;
  Tensor out_;
};

}  // namespace

CommunicatorOptions communicator_options(const BenchPlan& plan, std::size_t communicator) {
  CommunicatorOptions options;
  options.num_experts = plan.options.experts;
  options.expert_rank = plan.expert_rank;
  options.max_tokens = plan.max_tokens;
  options.max_hidden = plan.options.hidden;
  options.max_dtype = plan.options.dtype_value;
  options.max_topk = plan.options.topk;
  options.slots = plan.options.slots;
  options.store = plan.options.store_value;
  options.protocol = plan.options.protocol_value.protocol;
  options.checksum_rows = plan.options.protocol_value.checksum_rows;
  for (const BenchVariant& variant : plan.variants) {
    options.bsp = options.bsp || variant.path.path == Path::bsp;
    if (variant.path.layout == Layout::expert_padded) {
      options.expert_capacity = plan.max_tokens * static_cast<int>(plan.tokens.size());
    }
  }
  if (plan.adjusts[communicator] != nullptr) plan.adjusts[communicator](options);
  return options;
}

std::size_t notes_at(std::size_t variant) {
  return BenchScalars::count + variant * BenchNotes::count;
}

std::size_t times_at(const BenchPlan& plan, std::size_t variant, int iteration) {
  const auto index =
      variant * static_cast<std::size_t>(plan.options.iters) + static_cast<std::size_t>(iteration);
  return notes_at(plan.variants.size()) + index * BenchTimes::count;
}

std::size_t stage_doubles(const BenchPlan& plan) { return times_at(plan, plan.variants.size(), 0); }

int run_bench_rank(const Bootstrap& bootstrap, const BenchPlan& plan, Stage& stage) {
  stage.announce(bootstrap.rank, getpid());
  try {
    RankBench(bootstrap, plan, stage).run();
    return kOk;
  } catch (const Failed& failed) {
    stage.fail(failed.status);
  } catch (const Stopped&) {
  } catch (const std::exception& error) {
    stage.fail(kUsage, error.what());
  }
  return stage.exit_code();
}

}  // namespace ubep::tools
