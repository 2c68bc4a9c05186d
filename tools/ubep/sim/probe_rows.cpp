#include "tools/ubep/sim/probe_rows.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>

#include "tools/ubep/clock.hpp"
#include "tools/ubep/input_error.hpp"
#include "tools/ubep/routing_source.hpp"
#include "tools/ubep/stand_in.hpp"
#include "tools/ubep/summary.hpp"

namespace ubep::tools {
namespace {

constexpr std::size_t kSets = 8;
constexpr int kTurnsOfAKind = 20;  // laps before the next kind has its turn,
constexpr int kSkipped = 8;        //   after some that bring into the caches what it uses
constexpr int kRepeats = 50;
constexpr int kSmallPlan = 8;  // experts of the small plan, all taken by its one token
constexpr std::size_t kHugeBytes = 2 << 20;

// Private rows, on huge pages where they are large, as the library's are.
class Private {
 public:
  Private(std::size_t rows, std::size_t row_bytes) : bytes_(rows * row_bytes + kHugeBytes) {
    area_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (area_ == MAP_FAILED) throw std::bad_alloc();
    if (rows * row_bytes >= kHugeBytes / 2) madvise(area_, bytes_, MADV_HUGEPAGE);
    std::memset(area_, 0x3f, bytes_);  // 0.75: sums stay far from subnormal numbers
  }
  ~Private() { munmap(area_, bytes_); }
  Private(const Private&) = delete;
  Private& operator=(const Private&) = delete;
  std::byte* data() const { return static_cast<std::byte*>(area_); }

 private:
  std::size_t bytes_;
  void* area_;
};

// One rank at work. A lap is what a rank does with rows in a layer, part by part.
class Laps {
 public:
  Laps(const ProbeRows& rows, Stage& stage, int rank)
      : rows_(rows),
        stage_(stage),
        rank_(rank),
        bytes_(rows.shape().row_bytes()),
        planner_(rows.routing(), rank, rows.shape().experts, rows.shape().topk),
        small_planner_(rows.small_routing(), rank, kSmallPlan, kSmallPlan),
        clock_(clock_cost()),
        master_(index(rows.shape().tokens) * bytes_, std::byte{0x3f}),
        x_(index(rows.shape().tokens) * bytes_, std::byte{0x3f}),
        out_(index(rows.shape().tokens) * bytes_, std::byte{0x3f}),
        received_(rows.most_rows(), bytes_),
        y_(rows.most_rows(), bytes_),
        weights_(index(rows.shape().topk), 1.0F / static_cast<float>(rows.shape().topk)) {}

  void pull_lap(std::size_t number) {
    begin(number);
    if (number / 2 % 2 == 0) {  // one of them, as either makes the other's code and data warm
      time(RowTimes::plan, 1, [&] { (void)planner_.plan(set_); });
    } else {
      time(RowTimes::small_plan, 1, [&] { (void)small_planner_.plan(set_); });
    }
    time(RowTimes::share, lists_->crossing.size(), [&] {
      std::byte* to = area(ProbeRows::Area::tokens, rank_);
      for (const std::size_t t : lists_->crossing) copy(store(), to, t, x_.data(), t);
    });
    sim::end_rows();
    meet();
    const Store in = sim::receiving_store(lists_->taken.size() * bytes_);
    copy_own(RowTimes::copy, received_.data(), in);
    take(RowTimes::take, area(ProbeRows::Area::tokens, 1 - rank_), in, false);
    run_experts(received_.data(), outputs());
    meet();
    share_outputs();
    number / 2 % 2 == 0 ? sum_in_place() : sum_own();
  }

  void push_lap(std::size_t number) {
    begin(number);
    put(RowTimes::put, false);
    std::byte* inbox = area(ProbeRows::Area::inbox, rank_);
    copy_own(std::nullopt, inbox, sim::receiving_store(lists_->own.size() * bytes_));
    meet();
    run_experts(inbox, outputs());
    meet();
    share_outputs();
    sum_in_place();
  }

  void bsp_lap(std::size_t number) {
    begin(number);
    put(RowTimes::bsp_put, true);
    meet();
    const Store in = sim::receiving_store(lists_->taken.size() * bytes_);
    copy_own(RowTimes::bsp_copy, received_.data(), in);
    take(RowTimes::bsp_take, area(ProbeRows::Area::inbox, rank_), in, true);
    run_experts(received_.data(), y_.data());
    meet();
    time(RowTimes::back_put, lists_->back.size(), [&] {
      std::byte* to = area(ProbeRows::Area::back, 1 - rank_);
      for (std::size_t i = 0; i < lists_->back.size(); ++i) {
        copy(store(), to, i, y_.data(), lists_->back[i].from);
      }
    });
    sim::end_rows();
    meet();
    sum_back();
  }

  void repeat_plan() {
    for (int batch = 0; batch < kRepeats; ++batch) {
      time(RowTimes::warm_plan, kRepeats, [&] {
        for (int i = 0; i < kRepeats; ++i) (void)small_planner_.plan(0);
      });
    }
  }

  void forget() {
    for (auto& values : values_) values.clear();
  }
  RowTimes times() const {
    RowTimes times;
    for (std::size_t i = 0; i < values_.size(); ++i) times.seconds[i] = summarize(values_[i]).p50;
    for (std::size_t set = 0; set < rows_.sets(); ++set) {
      const auto n = static_cast<double>(rows_.sets());
      times.rows += static_cast<double>(rows_.lists(set, rank_).put.size()) / n;
      times.tokens += static_cast<double>(rows_.lists(set, rank_).crossing.size()) / n;
    }
    return times;
  }
  // The next values of some laps count for nothing.
  void count(bool counts) { counts_ = counts; }

 private:
  static std::size_t index(int i) { return static_cast<std::size_t>(i); }
  Store store() const { return rows_.shape().store; }
  std::byte* area(ProbeRows::Area area, int rank) const { return rows_.area(area, rank, turn_); }
  // Where experts write, and peers read with plain stores.
  std::byte* outputs() const {
    return store() == Store::near ? area(ProbeRows::Area::outputs, rank_) : y_.data();
  }

  void meet() {
    if (!stage_.barrier(rank_)) throw InputError("the other rank has ended");
  }

  void begin(std::size_t number) {
    set_ = number % rows_.sets();
    turn_ = number % 2;
    lists_ = &rows_.lists(set_, rank_);
    std::memcpy(x_.data(), master_.data(), index(rows_.shape().tokens) * bytes_);
    meet();
  }

  template <class Body>
  void time(std::optional<RowTimes::Part> part, std::size_t rows, Body body) {
    const double begin = now();
    body();
    const double spent = now() - begin - clock_;
    if (!part || rows == 0 || !counts_) return;
    values_[*part].push_back(std::max(spent, 0.0) / static_cast<double>(rows));
  }

  void copy(Store how, std::byte* to, std::size_t at, const std::byte* from, std::size_t row) {
    sim::copy_row(how, to + at * bytes_, from + row * bytes_, bytes_);
  }

  void copy_own(std::optional<RowTimes::Part> part, std::byte* to, Store how) {
    time(part, lists_->own.size(), [&] {
      for (const ProbeRows::Copy& c : lists_->own) copy(how, to, c.to, x_.data(), c.from);
    });
    sim::end_rows();
  }

  // in_order: they lie in the order in which they were put.
  void take(RowTimes::Part part, const std::byte* from, Store how, bool in_order) {
    time(part, lists_->taken.size(), [&] {
      for (std::size_t i = 0; i < lists_->taken.size(); ++i) {
        const ProbeRows::Copy& c = lists_->taken[i];
        copy(how, received_.data(), c.to, from, in_order ? i : c.from);
      }
    });
    sim::end_rows();
  }

  void put(RowTimes::Part part, bool in_order) {
    time(part, lists_->put.size(), [&] {
      std::byte* to = area(ProbeRows::Area::inbox, 1 - rank_);
      for (std::size_t i = 0; i < lists_->put.size(); ++i) {
        const ProbeRows::Copy& c = lists_->put[i];
        copy(store(), to, in_order ? i : c.to, x_.data(), c.from);
      }
    });
    sim::end_rows();
  }

  // Those of the benchmark: what matters is that rows are read and outputs written.
  void run_experts(const std::byte* from, std::byte* to) const {
    const auto rows = static_cast<std::int32_t>(lists_->rows);
    const std::array<std::int32_t, 2> offsets = {0, rows};
    const std::array<std::int32_t, 1> experts = {0};
    const auto hidden = static_cast<int>(bytes_ / 2);
    Received received{.layout = Layout::expert_major, .dtype = DType::bf16, .hidden = hidden};
    received.topk = rows_.shape().topk;
    received.num_rows = rows;
    received.base = from;
    received.stride_bytes = static_cast<std::int64_t>(bytes_);
    received.expert_counts = std::span(&rows, 1);
    received.expert_offsets = offsets;
    tools::run_experts(received, experts, {to, rows, hidden, DType::bf16});
  }

  void share_outputs() {
    if (store() == Store::near) return;
    time(RowTimes::out_share, lists_->back.size(), [&] {
      std::byte* to = area(ProbeRows::Area::outputs, rank_);
      for (const ProbeRows::Copy& c : lists_->back) copy(Store::far, to, c.from, y_.data(), c.from);
    });
    sim::end_rows();
    meet();
  }

  // row(i): of the i-th summand.
  template <class Row>
  void sum(RowTimes::Part part, Row row) {
    const std::size_t topk = weights_.size();
    time(part, lists_->sums.size(), [&] {
      std::array<const std::byte*, 64> rows;
      for (std::size_t i = 0; i < lists_->sums.size(); i += topk) {
        for (std::size_t k = 0; k < topk; ++k) rows[k] = row(i + k);
        sim::sum_row({rows.data(), topk}, weights_.data(), bytes_ / 2,
                     out_.data() + i / topk * bytes_);
      }
    });
  }
  void sum_in_place() {
    const std::byte* own = outputs();
    const std::byte* peers = area(ProbeRows::Area::outputs, 1 - rank_);
    sum(RowTimes::mixed_sum, [&](std::size_t i) {
      const ProbeRows::Summand& s = lists_->sums[i];
      return (s.peers ? peers : own) + s.at * bytes_;
    });
  }
  void sum_own() {
    const std::byte* own = outputs();
    const std::size_t rows = std::max<std::size_t>(lists_->rows, 1);
    sum(RowTimes::sum, [&](std::size_t i) { return own + i % rows * bytes_; });
  }
  void sum_back() {
    const std::byte* peers = area(ProbeRows::Area::back, rank_);
    sum(RowTimes::back_sum, [&](std::size_t i) {
      const ProbeRows::Summand& s = lists_->sums[i];
      return s.peers ? peers + s.back * bytes_ : y_.data() + s.at * bytes_;
    });
  }

  const ProbeRows& rows_;
  Stage& stage_;
  int rank_;
  std::size_t bytes_;
  sim::Planner planner_, small_planner_;
  double clock_;
  std::vector<std::byte> master_, x_, out_;  // a caller's, wherever they lie
  Private received_, y_;
  std::vector<float> weights_;
  const ProbeRows::Lists* lists_ = nullptr;
  std::size_t set_ = 0;
  std::size_t turn_ = 0;
  bool counts_ = true;
  std::array<std::vector<double>, RowTimes::count> values_;
};

// Choice number `choice` of rank `source`, on rank `owner` at its place `at`.
struct Placed {
  std::size_t source, choice, at;
};

// Rows of an owner: by expert, then by source, then by token.
std::vector<Placed> rows_of(const std::vector<sim::RoutedTokens>& set, int first, int end) {
  std::vector<Placed> rows;
  for (int e = first; e < end; ++e) {
    for (std::size_t q = 0; q < set.size(); ++q) {
      for (std::size_t i = 0; i < set[q].topk_idx.size(); ++i) {
        if (set[q].topk_idx[i] == e) rows.push_back({q, i, rows.size()});
      }
    }
  }
  return rows;
}

std::array<ProbeRows::Lists, 2> lists_of(const std::vector<sim::RoutedTokens>& set,
                                         const ProbeShape& shape) {
  const auto topk = static_cast<std::size_t>(shape.topk);
  const std::array first = {0, (shape.experts + 1) / 2, shape.experts};
  std::array<ProbeRows::Lists, 2> lists;
  for (auto& of_rank : lists) of_rank.sums.resize(static_cast<std::size_t>(shape.tokens) * topk);
  for (std::size_t owner = 0; owner < 2; ++owner) {
    std::size_t back = 0;
    const std::vector<Placed> rows = rows_of(set, first[owner], first[owner + 1]);
    lists[owner].rows = rows.size();
    for (const Placed& row : rows) {
      const ProbeRows::Copy copy{row.choice / topk, row.at};
      const bool crosses = row.source != owner;
      ProbeRows::Lists& source = lists[row.source];
      source.sums[row.choice] = {crosses, row.at, crosses ? back : 0};
      if (!crosses) {
        source.own.push_back(copy);
        continue;
      }
      ++back;
      lists[owner].taken.push_back(copy);
      lists[owner].back.push_back({row.at, 0});
      source.put.push_back(copy);
      source.crossing.push_back(copy.from);
    }
  }
  for (auto& of_rank : lists) {
    auto& tokens = of_rank.crossing;
    std::sort(tokens.begin(), tokens.end());
    tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
  }
  return lists;
}

std::vector<std::vector<sim::RoutedTokens>> routings(const ProbeShape& shape) {
  std::vector<std::vector<sim::RoutedTokens>> sets;
  for (std::size_t set = 0; set < kSets; ++set) {
    auto& of_set = sets.emplace_back();
    for (RankRouting& r : make_routing("uniform", {.num_tokens = {shape.tokens, shape.tokens},
                                                  .topk = shape.topk,
                                                  .experts = shape.experts,
                                                  .set = set})) {
      of_set.push_back({std::move(r.topk_idx), std::move(r.topk_weights)});
    }
  }
  return sets;
}

}  // namespace

ProbeRows::ProbeRows(const ProbeShape& shape) : shape_(shape) {
  small_routing_ = routings({.tokens = 1, .topk = kSmallPlan, .experts = kSmallPlan});
  routing_ = routings(shape);
  for (const auto& of_set : routing_) {
    lists_.push_back(lists_of(of_set, shape));
    for (const Lists& of_rank : lists_.back()) most_rows_ = std::max(most_rows_, of_rank.rows);
  }
  most_rows_ = std::max(most_rows_, static_cast<std::size_t>(shape.tokens));
  shared_ = std::make_unique<SharedBytes>(2 * 2 * 4 * area_rows() * shape_.row_bytes());
}

std::byte* ProbeRows::area(Area area, int rank, std::size_t turn) const {
  const std::size_t number =
      (static_cast<std::size_t>(area) * 2 + static_cast<std::size_t>(rank)) * 2 + turn;
  return shared_->data() + number * area_rows() * shape_.row_bytes();
}

RowTimes ProbeRows::measure(Stage& stage, int rank) const {
  Laps laps(*this, stage, rank);
  std::size_t number = 0;
  const auto some = [&](void (Laps::*lap)(std::size_t)) {
    for (int i = 0; i < kTurnsOfAKind + kSkipped; ++i) {
      laps.count(i >= kSkipped);
      (laps.*lap)(number++);
    }
  };
  for (int done = -kTurnsOfAKind; done < shape_.laps; done += kTurnsOfAKind) {
    if (done == 0) laps.forget();  // what was first touched
    some(&Laps::pull_lap);
    some(&Laps::push_lap);
    some(&Laps::bsp_lap);
  }
  laps.repeat_plan();
  return laps.times();
}

}  // namespace ubep::tools
