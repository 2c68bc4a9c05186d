#include "bench/rivals/harness.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <ctime>
#include <nlohmann/json.hpp>

#include "bench/rivals/packages.hpp"
#include "bench/rivals/rows.hpp"
#include "bench/rivals/ways.hpp"
#include "tools/ubep/atomic_file.hpp"
#include "tools/ubep/clock.hpp"
#include "tools/ubep/exit_code.hpp"
#include "tools/ubep/machine.hpp"
#include "tools/ubep/stand_in.hpp"
#include "tools/ubep/summary.hpp"

namespace ubep::rivals {
namespace {

using tools::now;

constexpr int kMostWays = 48;
constexpr int kFewest = 4;  // iterations of a block
constexpr int kMost = 64;
constexpr int kSkipped = 3;  // before the cycles of a block are counted
constexpr int kWarmUps = 6;

// Numbers of a rank on the stage.
enum Field {
  write_begin,
  write_end,
  dispatch_begin,
  dispatch_end,
  experts_end,
  combine_begin,
  combine_end,
  cycle_begin,
  cycle_end,
  fields
};
constexpr std::size_t kMismatches = 0;          // [kMostWays]
constexpr std::size_t kIterations = kMostWays;  // [kMostWays], of rank 0
constexpr std::size_t kCpu = 2 * kMostWays;     // the first that the rank may use
constexpr std::size_t kSamples = kCpu + 1;      // [kMost][fields]

// Medians of one block, us.
struct Block {
  double dispatch = 0;
  double combine = 0;
  double round_trip = 0;
  double cycle = 0;
  double write = 0;    // of activations, on the slowest rank
  double experts = 0;  // likewise
};

struct Round {
  tools::PlacementProbe before;
  tools::PlacementProbe after;
};

class Harness {
 public:
  Harness(Group group, const Plan& plan)
      : plan_(plan),
        group_(std::move(group)),
        stage_(group_.stage()),
        numbers_(stage_.numbers(group_.rank())),
        probed_(group_.spans_hosts() ? nullptr : group_.allocate(64)),
        tokens_(plan.shape.tokens[static_cast<std::size_t>(group_.rank())]),
        out_(static_cast<std::size_t>(tokens_), plan.shape.row_bytes()) {
    for (std::size_t set = 0; set < plan.routing.size(); ++set) {
      masters_.push_back(
          std::make_unique<Matrix>(static_cast<std::size_t>(tokens_), plan.shape.row_bytes()));
      tools::make_activations({group_.rank(), static_cast<int>(set)}, 0,
                              masters_.back()->view(tokens_));
    }
    for (auto& sums : references_) sums.resize(plan.routing.size());
    for (NamedWay& way : make_ways(group_, plan.shape, plan.fixed_choices)) {
      if (wanted(way.info.name)) ways_.push_back(std::move(way));
    }
    if (ways_.empty()) throw std::runtime_error("--only: no way has a name that begins so");
    if (ways_.size() > kMostWays) throw std::runtime_error("more ways than the stage has room for");
    blocks_.resize(ways_.size());
  }

  void run() {
    numbers_[kCpu] = tools::usable_cpus().at(0);
    for (std::size_t w = 0; w < ways_.size(); ++w) {
      check(w);
      warm_up(w);
    }
    probe(true);
    for (int round = 0; round < plan_.rounds; ++round) {
      rounds_.emplace_back().before = probe_;
      for (std::size_t i = 0; i < ways_.size(); ++i) {
        measure((i + static_cast<std::size_t>(round) * 5) % ways_.size());
      }
      probe(true);
      rounds_.back().after = probe_;
    }
    for (std::size_t w = 0; w < ways_.size(); ++w) check(w);
    gather();
    if (group_.rank() == 0) write_result();
    if (group_.rank() == 0) complain();
    (void)stage_.barrier(group_.rank());
  }

 private:
  bool wanted(const std::string& name) const {
    if (plan_.only.empty()) return true;
    return std::any_of(plan_.only.begin(), plan_.only.end(),
                       [&](const std::string& start) { return name.starts_with(start); });
  }

  void meet() {
    const auto step = [this] { ways_[way_].way->step(); };
    const bool met =
        group_.spans_hosts() ? stage_.barrier(group_.rank(), step) : stage_.barrier(group_.rank());
    if (!met) throw std::runtime_error("another rank failed");
  }
  // Until rank 0 can read all ranks' numbers.
  void gather() {
    meet();
    if (!group_.spans_hosts()) return;
    if (!stage_.gather(group_.rank())) throw std::runtime_error("another rank failed");
  }

  const tools::RankRouting& routing(std::size_t set) const {
    return plan_.routing[set][static_cast<std::size_t>(group_.rank())];
  }

  void write_activations(Way& way, std::size_t set) {
    const Rows x = way.input();
    for (std::int64_t t = 0; t < x.num_rows; ++t) {
      std::memcpy(x.row(t), masters_[set]->row(static_cast<std::size_t>(t)),
                  plan_.shape.row_bytes());
    }
  }

  void iterate(Way& way, std::size_t set) {
    write_activations(way, set);
    way.dispatch(routing(set));
    way.experts();
    way.combine(out_.view(tokens_));
  }

  void check(std::size_t w) {
    way_ = w;
    for (std::size_t set = 0; set < plan_.routing.size(); ++set) {
      std::memset(out_.data(), 0xFF, static_cast<std::size_t>(tokens_) * plan_.shape.row_bytes());
      iterate(*ways_[w].way, set);
      numbers_[kMismatches + w] += mismatches(ways_[w].info, set);
    }
    meet();
  }

  // Tokens whose sum is not what the layout's order of additions gives.
  int mismatches(const WayInfo& info, std::size_t set) {
    const Matrix& expected = reference(is_by_expert(info.layout), set);
    int wrong = 0;
    for (std::size_t t = 0; t < static_cast<std::size_t>(tokens_); ++t) {
      const bool same = std::memcmp(expected.row(t), out_.row(t), plan_.shape.row_bytes()) == 0;
      if (!same && !is_near(expected.row(t), out_.row(t), info.tolerance)) ++wrong;
    }
    return wrong;
  }

  // One element at a time, by other code than any way's; made once.
  const Matrix& reference(bool by_expert, std::size_t set) {
    std::unique_ptr<Matrix>& rows = references_[by_expert ? 1 : 0][set];
    if (rows != nullptr) return *rows;
    rows = std::make_unique<Matrix>(static_cast<std::size_t>(tokens_), plan_.shape.row_bytes());
    const auto topk = static_cast<std::size_t>(plan_.shape.topk);
    std::vector<float> sums(static_cast<std::size_t>(plan_.shape.hidden));
    for (std::int64_t t = 0; t < tokens_; ++t) {
      const auto first = static_cast<std::size_t>(t) * topk;
      tools::expected_token(
          {.topk_idx = std::span(routing(set).topk_idx).subspan(first, topk),
           .topk_weights = std::span(routing(set).topk_weights).subspan(first, topk),
           .expert_rank = plan_.shape.expert_rank,
           .layout = by_expert ? Layout::expert_major : Layout::rank_major,
           .ranks = plan_.shape.ranks(),
           .host_of = host_of()},
          masters_[set]->view(tokens_), t, sums);
      std::byte* row = rows->row(static_cast<std::size_t>(t));
      for (std::size_t i = 0; i < sums.size(); ++i) {
        tools::store_element(row, static_cast<std::int64_t>(i), DType::bf16, sums[i]);
      }
    }
    return *rows;
  }

  // Sums of rank_major are then made host by host.
  std::span<const int> host_of() const {
    return group_.spans_hosts() ? std::span<const int>(stage_.hosts()->host_of)
                                : std::span<const int>();
  }

  bool is_near(const std::byte* expected, const std::byte* row, double tolerance) const {
    const auto value = [](const std::byte* from, std::int64_t i) {
      return double{tools::load_element(from, i, DType::bf16)};
    };
    double largest = 0;
    for (std::int64_t i = 0; i < plan_.shape.hidden; ++i) {
      largest = std::max(largest, std::abs(value(expected, i)));
    }
    for (std::int64_t i = 0; i < plan_.shape.hidden; ++i) {
      const double error = std::abs(value(row, i) - value(expected, i));
      if (!(tolerance > 0 && error <= tolerance * largest)) return false;  // also of a NaN
    }
    return true;
  }

  // Also finds out how many iterations a block has.
  void warm_up(std::size_t w) {
    way_ = w;
    for (int i = 0; i < kWarmUps; ++i) iterate(*ways_[w].way, set_of(i));
    meet();
    const double begin = now();
    for (int i = 0; i < kFewest; ++i) iterate(*ways_[w].way, set_of(i));
    const double us = (now() - begin) * 1e6 / kFewest;
    if (group_.spans_hosts()) {
      numbers_[kIterations + w] = plan_.block_iters;
    } else if (group_.rank() == 0) {
      numbers_[kIterations + w] = std::clamp(plan_.block_ms * 1e3 / us, kFewest * 1.0, kMost * 1.0);
    }
    meet();
  }

  std::size_t set_of(int iteration) const {
    return static_cast<std::size_t>(iteration) % plan_.routing.size();
  }

  double& at(int iteration, Field field) {
    return numbers_[kSamples + static_cast<std::size_t>(iteration) * fields + field];
  }

  void measure(std::size_t w) {
    Way& way = *ways_[w].way;
    way_ = w;
    const int teller = group_.spans_hosts() ? group_.rank() : 0;
    const int n = static_cast<int>(stage_.numbers(teller)[kIterations + w]);
    for (int i = 0; i < 2; ++i) iterate(way, set_of(i));
    for (int i = 0; i < n; ++i) {
      at(i, write_begin) = now();
      write_activations(way, set_of(i));
      at(i, write_end) = now();
      meet();
      at(i, dispatch_begin) = now();
      way.dispatch(routing(set_of(i)));
      at(i, dispatch_end) = now();
      way.experts();
      at(i, experts_end) = now();
      meet();
      at(i, combine_begin) = now();
      way.combine(out_.view(tokens_));
      at(i, combine_end) = now();
    }
    meet();
    for (int i = -kSkipped; i < n; ++i) {  // back to back: only the way itself synchronises
      const double begin = now();
      iterate(way, set_of(i + kSkipped));
      if (i >= 0) at(i, cycle_begin) = begin;
      if (i >= 0) at(i, cycle_end) = now();
    }
    gather();
    if (group_.rank() == 0) blocks_[w].push_back(sum_up(n));
    meet();
  }

  // Over all ranks: phases from the first start to the last end, cycles from last start to last
  // end, own work of the slowest rank. Without a clock in common, always of the slowest rank.
  Block sum_up(int n) {
    std::vector<double> dispatch;
    std::vector<double> combine;
    std::vector<double> round_trip;
    std::vector<double> cycle;
    std::vector<double> write;
    std::vector<double> experts;
    for (int i = 0; i < n; ++i) {
      if (group_.spans_hosts()) {
        dispatch.push_back(longest(i, dispatch_begin, dispatch_end));
        combine.push_back(longest(i, combine_begin, combine_end));
        cycle.push_back(longest(i, cycle_begin, cycle_end));
      } else {
        dispatch.push_back(last(i, dispatch_end) - first(i, dispatch_begin));
        combine.push_back(last(i, combine_end) - first(i, combine_begin));
        cycle.push_back(last(i, cycle_end) - last(i, cycle_begin));
      }
      round_trip.push_back(dispatch.back() + combine.back());
      write.push_back(longest(i, write_begin, write_end));
      experts.push_back(longest(i, dispatch_end, experts_end));
    }
    const auto median = [](const std::vector<double>& us) { return tools::summarize(us).p50; };
    return {median(dispatch), median(combine), median(round_trip),
            median(cycle),    median(write),   median(experts)};
  }

  double us(int rank, int iteration, Field field) {
    return stage_.numbers(rank)[kSamples + static_cast<std::size_t>(iteration) * fields + field] *
           1e6;
  }
  double first(int iteration, Field field) {
    double value = us(0, iteration, field);
    for (int r = 1; r < group_.size(); ++r) value = std::min(value, us(r, iteration, field));
    return value;
  }
  double last(int iteration, Field field) {
    double value = us(0, iteration, field);
    for (int r = 1; r < group_.size(); ++r) value = std::max(value, us(r, iteration, field));
    return value;
  }
  double longest(int iteration, Field begin, Field end) {
    double value = 0;
    for (int r = 0; r < group_.size(); ++r) {
      value = std::max(value, us(r, iteration, end) - us(r, iteration, begin));
    }
    return value;
  }

  // By rank 0, while the others sleep.
  void probe(bool wait) {
    if (group_.spans_hosts()) return;  // a rank may not see another one's CPU
    meet();
    ++probes_;
    const SharedWord word(probed_);
    if (group_.rank() == 0) {
      probe_ = tools::probe_placement(cpu_of(0), cpu_of(1));
      // publishes: that the probe is over, to the loop below; without it others would disturb it.
      word.store_release(probes_);
    }
    // acquires: nothing but the end of the probe.
    while (wait && word.load_acquire() < probes_ && !stage_.failed()) {
      const timespec pause{0, 200'000};
      nanosleep(&pause, nullptr);
    }
    meet();
  }

  // Of two ranks: a launcher may have bound each to one CPU of its own.
  int cpu_of(int rank) {
    const std::vector<int> mine = tools::usable_cpus();
    if (mine.size() > 1) return mine[static_cast<std::size_t>(rank)];
    return static_cast<int>(stage_.numbers(rank)[kCpu]);
  }

  static nlohmann::ordered_json to_json(const tools::PlacementProbe& probe) {
    nlohmann::ordered_json json{{"placement", tools::placement_name(probe.placement)}};
    if (probe.flag_one_way_ns) json["flag_one_way_ns"] = *probe.flag_one_way_ns;
    return json;
  }

  double wrong(std::size_t w) {
    double rows = 0;
    for (int r = 0; r < group_.size(); ++r) rows += stage_.numbers(r)[kMismatches + w];
    return rows;
  }

  void complain() {
    for (std::size_t w = 0; w < ways_.size(); ++w) {
      if (wrong(w) == 0) continue;
      stage_.fail(tools::kCheckFailed, fmt::format("{}: {} rows differ from the reference",
                                                   ways_[w].info.name, wrong(w)));
    }
  }

  void write_result() {
    nlohmann::ordered_json result;
    const tools::Machine machine = tools::read_machine();
    result["schema"] = "ubep-rivals/1";
    result["machine"] = {{"cpus", machine.cpus}, {"model", machine.model}};
    result["ranks"] = plan_.shape.ranks();
    if (group_.spans_hosts()) result["host_of"] = stage_.hosts()->host_of;
    result["tokens"] = plan_.shape.tokens;
    result["hidden"] = plan_.shape.hidden;
    result["topk"] = plan_.shape.topk;
    result["experts"] = plan_.shape.expert_rank.size();
    for (const Round& round : rounds_) {
      result["rounds"].push_back(
          {{"before", to_json(round.before)}, {"after", to_json(round.after)}});
    }
    for (std::size_t w = 0; w < ways_.size(); ++w) {
      const WayInfo& info = ways_[w].info;
      nlohmann::ordered_json way{{"name", info.name},
                                 {"kind", name(info.kind)},
                                 {"layout", ubep::name(info.layout)},
                                 {"text", info.text}};
      if (info.tolerance > 0) way["tolerance"] = info.tolerance;
      way["mismatches"] = static_cast<int>(wrong(w));
      way["iterations"] = static_cast<int>(numbers_[kIterations + w]);
      for (const Block& block : blocks_[w]) {
        way["us"].push_back({{"dispatch", block.dispatch},
                             {"combine", block.combine},
                             {"round_trip", block.round_trip},
                             {"cycle", block.cycle},
                             {"write", block.write},
                             {"experts", block.experts}});
      }
      result["ways"].push_back(std::move(way));
    }
    tools::write_file(plan_.json, result.dump(1) + "\n");
  }

  const Plan& plan_;
  Group group_;
  tools::Stage& stage_;
  std::span<double> numbers_;
  std::byte* probed_;
  std::uint64_t probes_ = 0;
  int tokens_;
  Matrix out_;
  std::vector<std::unique_ptr<Matrix>> masters_;                    // [sets] activations
  std::array<std::vector<std::unique_ptr<Matrix>>, 2> references_;  // [by expert][sets] sums
  std::vector<NamedWay> ways_;
  std::size_t way_ = 0;                     // that is in use
  std::vector<std::vector<Block>> blocks_;  // [ways][rounds], of rank 0
  std::vector<Round> rounds_;
  tools::PlacementProbe probe_;
};

}  // namespace

std::size_t stage_doubles() { return kSamples + std::size_t{kMost} * fields; }

int run_rank(const Bootstrap& bootstrap, const Plan& plan, tools::Stage& stage, std::byte* shared,
             std::size_t shared_bytes) {
  stage.announce(bootstrap.rank, getpid());
  try {
    Group group(bootstrap, stage, shared, shared_bytes);
    start_packages(group);
    Harness(group, plan).run();
    stop_packages();
    return stage.exit_code();
  } catch (const tools::Failed& failed) {
    stage.fail(failed.status);
  } catch (const std::exception& error) {
    stage.fail(tools::kUsage, error.what());
  }
  return stage.exit_code();
}

}  // namespace ubep::rivals
