// Rivals over MPI: a shared window with barriers, Alltoallv, put and get. Built once per MPI.
#include <mpi.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

#include "bench/rivals/direct.hpp"
#include "bench/rivals/packages.hpp"
#include "bench/rivals/rank_exchange.hpp"
#include "tools/ubep/stand_in.hpp"

namespace ubep::rivals {
namespace {

void expect(int code, const char* call) {
  if (code != MPI_SUCCESS) throw std::runtime_error(std::string(call) + " failed");
}

// A window of `bytes` per rank that every rank maps.
class SharedWindow {
 public:
  SharedWindow(std::size_t bytes, int ranks) {
    void* mine = nullptr;
    expect(MPI_Win_allocate_shared(static_cast<MPI_Aint>(bytes), 1, MPI_INFO_NULL, MPI_COMM_WORLD,
                                   &mine, &window_),
           "MPI_Win_allocate_shared");
    for (int r = 0; r < ranks; ++r) {
      MPI_Aint size = 0;
      int unit = 0;
      void* base = nullptr;
      expect(MPI_Win_shared_query(window_, r, &size, &unit, &base), "MPI_Win_shared_query");
      auto* first = static_cast<std::byte*>(base);
      areas_.push_back(first + (64 - reinterpret_cast<std::uintptr_t>(first) % 64) % 64);
    }
    expect(MPI_Win_lock_all(MPI_MODE_NOCHECK, window_), "MPI_Win_lock_all");
  }
  ~SharedWindow() {
    MPI_Win_unlock_all(window_);
    MPI_Win_free(&window_);
  }
  SharedWindow(const SharedWindow&) = delete;
  SharedWindow& operator=(const SharedWindow&) = delete;
  MPI_Win window() const { return window_; }
  const std::vector<std::byte*>& areas() const { return areas_; }

 private:
  MPI_Win window_ = MPI_WIN_NULL;
  std::vector<std::byte*> areas_;
};

// Direct placement in MPI's shared window; MPI_Win_sync and MPI_Barrier in the place of flags.
class WindowWay final : public DirectWay {
 public:
  WindowWay(Group& group, const Shape& shape, const DirectChoice& choice,
            std::shared_ptr<SharedWindow> window)
      : DirectWay(group, shape, choice, window->areas()), window_(std::move(window)) {}

 private:
  void meet() override {
    store_fence();
    expect(MPI_Win_sync(window_->window()), "MPI_Win_sync");
    expect(MPI_Barrier(MPI_COMM_WORLD), "MPI_Barrier");
    expect(MPI_Win_sync(window_->window()), "MPI_Win_sync");
  }
  std::shared_ptr<SharedWindow> window_;
};

enum class Transfer { packed, unpermuted, put_get };

// Rows sorted by owner and expert in a send buffer, moved by one call each way.
class MessageWay final : public Way {
 public:
  // packed: the receiver regroups its rows by expert, and the outputs back. unpermuted: experts
  // work on one segment per source. put_get: rows by MPI_Put as they are, outputs by MPI_Get.
  MessageWay(const Group& group, const Shape& shape, Transfer transfer);
  ~MessageWay() override {
    if (window_ != MPI_WIN_NULL) {
      MPI_Win_unlock_all(window_);
      MPI_Win_free(&window_);
    }
  }
  MessageWay(const MessageWay&) = delete;
  MessageWay& operator=(const MessageWay&) = delete;

  Rows input() override { return x_.view(tokens_); }
  void dispatch(const tools::RankRouting& routing) override;
  void experts() override;
  void combine(const Rows& out) override;

 private:
  void sort_choices(const tools::RankRouting& routing);
  void exchange_counts();
  void regroup(const Matrix& from, const Matrix& to, bool back);
  void all_to_all(const Matrix& from, const std::vector<int>& counts, const std::vector<int>& at,
                  const Matrix& to, const std::vector<int>& to_counts,
                  const std::vector<int>& to_at);
  void put_rows();
  void get_outputs();

  Shape shape_;
  Transfer transfer_;
  int rank_;
  int ranks_;
  int tokens_;
  std::size_t topk_;
  std::size_t row_bytes_;
  std::size_t experts_;    // E
  std::size_t most_rows_;  // that one rank can receive
  MPI_Datatype row_type_ = MPI_DATATYPE_NULL;
  MPI_Win window_ = MPI_WIN_NULL;
  std::byte* window_rows_ = nullptr;
  Matrix x_;
  Matrix send_;                       // [choices] by owner, expert
  Matrix receive_;                    // by source, expert
  Matrix grouped_;                    // by expert, source
  Matrix outputs_;                    // as the experts' rows
  Matrix returned_;                   // outputs, as send_
  std::vector<float> scale_;          // of local experts
  std::vector<int> first_local_;      // [ranks + 1] experts are in blocks
  std::vector<int> sent_;             // [E] my rows for each expert
  std::vector<int> received_;         // [ranks][Le]
  std::vector<std::uint32_t> next_;   // [E]
  std::vector<std::uint32_t> place_;  // [choices] in send_
  std::vector<int> send_counts_, send_at_, receive_counts_, receive_at_;
  const tools::RankRouting* routing_ = nullptr;
};

MessageWay::MessageWay(const Group& group, const Shape& shape, Transfer transfer)
    : shape_(shape),
      transfer_(transfer),
      rank_(group.rank()),
      ranks_(group.size()),
      tokens_(shape.tokens[static_cast<std::size_t>(rank_)]),
      topk_(static_cast<std::size_t>(shape.topk)),
      row_bytes_(shape.row_bytes()),
      experts_(shape.expert_rank.size()),
      most_rows_(static_cast<std::size_t>(shape.total_tokens()) * topk_),
      x_(static_cast<std::size_t>(tokens_), row_bytes_),
      send_(static_cast<std::size_t>(tokens_) * topk_, row_bytes_),
      receive_(transfer == Transfer::put_get ? 1 : most_rows_, row_bytes_),
      grouped_(transfer == Transfer::packed ? most_rows_ : 1, row_bytes_),
      outputs_(transfer == Transfer::put_get ? 1 : most_rows_, row_bytes_),
      returned_(static_cast<std::size_t>(tokens_) * topk_, row_bytes_),
      first_local_(static_cast<std::size_t>(ranks_) + 1),
      sent_(experts_),
      send_counts_(static_cast<std::size_t>(ranks_)),
      send_at_(static_cast<std::size_t>(ranks_)),
      receive_counts_(static_cast<std::size_t>(ranks_)),
      receive_at_(static_cast<std::size_t>(ranks_)) {
  for (std::size_t e = 0; e < experts_; ++e) {
    ++first_local_[static_cast<std::size_t>(shape.expert_rank[e]) + 1];
    if (shape.expert_rank[e] != rank_) continue;
    scale_.push_back(tools::expert_scale(static_cast<std::int32_t>(e)));
  }
  std::partial_sum(first_local_.begin(), first_local_.end(), first_local_.begin());
  received_.resize(static_cast<std::size_t>(ranks_) * scale_.size());
  expect(MPI_Type_contiguous(static_cast<int>(row_bytes_), MPI_BYTE, &row_type_), "MPI_Type");
  expect(MPI_Type_commit(&row_type_), "MPI_Type_commit");
  if (transfer_ != Transfer::put_get) return;
  // Rows at [source][its rows for me], then outputs likewise.
  const std::size_t bytes = 2 * static_cast<std::size_t>(ranks_) *
                            static_cast<std::size_t>(shape.max_tokens()) * topk_ * row_bytes_;
  void* base = nullptr;
  expect(MPI_Win_allocate(static_cast<MPI_Aint>(bytes), static_cast<int>(row_bytes_), MPI_INFO_NULL,
                          MPI_COMM_WORLD, &base, &window_),
         "MPI_Win_allocate");
  window_rows_ = static_cast<std::byte*>(base);
  expect(MPI_Win_lock_all(MPI_MODE_NOCHECK, window_), "MPI_Win_lock_all");
}

// The place of every choice among the rows to send, and their numbers.
void MessageWay::sort_choices(const tools::RankRouting& routing) {
  routing_ = &routing;
  std::fill(sent_.begin(), sent_.end(), 0);
  for (std::int32_t e : routing.topk_idx) {
    if (e >= 0) ++sent_[static_cast<std::size_t>(e)];
  }
  next_.assign(experts_ + 1, 0);
  for (std::size_t e = 0; e < experts_; ++e) {
    next_[e + 1] = next_[e] + static_cast<std::uint32_t>(sent_[e]);
  }
  for (std::size_t r = 0; r < static_cast<std::size_t>(ranks_); ++r) {
    send_at_[r] = static_cast<int>(next_[static_cast<std::size_t>(first_local_[r])]);
    send_counts_[r] =
        static_cast<int>(next_[static_cast<std::size_t>(first_local_[r + 1])]) - send_at_[r];
  }
  place_.resize(routing.topk_idx.size());
  for (std::size_t i = 0; i < routing.topk_idx.size(); ++i) {
    if (routing.topk_idx[i] < 0) continue;
    place_[i] = next_[static_cast<std::size_t>(routing.topk_idx[i])]++;
    if (transfer_ == Transfer::put_get) continue;
    copy_plain(send_.row(place_[i]), x_.row(i / topk_), row_bytes_);
  }
}

void MessageWay::exchange_counts() {
  std::vector<int> counts(static_cast<std::size_t>(ranks_));
  std::vector<int> at(static_cast<std::size_t>(ranks_));
  std::vector<int> mine(static_cast<std::size_t>(ranks_), static_cast<int>(scale_.size()));
  std::vector<int> mine_at(static_cast<std::size_t>(ranks_));
  for (std::size_t r = 0; r < counts.size(); ++r) {
    counts[r] = first_local_[r + 1] - first_local_[r];
    at[r] = first_local_[r];
    mine_at[r] = static_cast<int>(r * scale_.size());
  }
  expect(MPI_Alltoallv(sent_.data(), counts.data(), at.data(), MPI_INT, received_.data(),
                       mine.data(), mine_at.data(), MPI_INT, MPI_COMM_WORLD),
         "MPI_Alltoallv");
  int first = 0;
  for (std::size_t q = 0; q < counts.size(); ++q) {
    const int* theirs = received_.data() + q * scale_.size();
    receive_counts_[q] = std::accumulate(theirs, theirs + scale_.size(), 0);
    receive_at_[q] = first;
    first += receive_counts_[q];
  }
}

void MessageWay::all_to_all(const Matrix& from, const std::vector<int>& counts,
                            const std::vector<int>& at, const Matrix& to,
                            const std::vector<int>& to_counts, const std::vector<int>& to_at) {
  expect(MPI_Alltoallv(from.data(), counts.data(), at.data(), row_type_, to.data(),
                       to_counts.data(), to_at.data(), row_type_, MPI_COMM_WORLD),
         "MPI_Alltoallv");
}

// From the order (source, expert) to (expert, source), or back.
void MessageWay::regroup(const Matrix& from, const Matrix& to, bool back) {
  std::size_t grouped = 0;
  std::vector<std::size_t> next(receive_at_.begin(), receive_at_.end());
  for (std::size_t e = 0; e < scale_.size(); ++e) {
    for (std::size_t q = 0; q < next.size(); ++q) {
      for (int i = 0; i < received_[q * scale_.size() + e]; ++i, ++grouped) {
        const std::size_t segment = next[q]++;
        back ? copy_plain(to.row(segment), from.row(grouped), row_bytes_)
             : copy_plain(to.row(grouped), from.row(segment), row_bytes_);
      }
    }
  }
}

void MessageWay::put_rows() {
  const std::size_t most = static_cast<std::size_t>(shape_.max_tokens()) * topk_;
  for (std::size_t i = 0; i < place_.size(); ++i) {
    if (routing_->topk_idx[i] < 0) continue;
    const int owner = shape_.expert_rank[static_cast<std::size_t>(routing_->topk_idx[i])];
    const auto at = static_cast<MPI_Aint>(static_cast<std::size_t>(rank_) * most + place_[i]) -
                    send_at_[static_cast<std::size_t>(owner)];
    expect(MPI_Put(x_.row(i / topk_), 1, row_type_, owner, at, 1, row_type_, window_), "MPI_Put");
  }
  expect(MPI_Win_flush_all(window_), "MPI_Win_flush_all");
  expect(MPI_Barrier(MPI_COMM_WORLD), "MPI_Barrier");
  expect(MPI_Win_sync(window_), "MPI_Win_sync");
}

void MessageWay::dispatch(const tools::RankRouting& routing) {
  sort_choices(routing);
  exchange_counts();
  if (transfer_ == Transfer::put_get) return put_rows();
  all_to_all(send_, send_counts_, send_at_, receive_, receive_counts_, receive_at_);
  if (transfer_ == Transfer::packed) regroup(receive_, grouped_, false);
}

void MessageWay::experts() {
  const auto hidden = static_cast<std::size_t>(shape_.hidden);
  const std::size_t most = static_cast<std::size_t>(shape_.max_tokens()) * topk_;
  if (transfer_ == Transfer::packed) {
    std::size_t row = 0;
    for (std::size_t e = 0; e < scale_.size(); ++e) {
      for (std::size_t q = 0; q < static_cast<std::size_t>(ranks_); ++q) {
        for (int i = 0; i < received_[q * scale_.size() + e]; ++i, ++row) {
          run_expert(scale_[e], grouped_.row(row), hidden, outputs_.row(row));
        }
      }
    }
    return;
  }
  for (std::size_t q = 0; q < static_cast<std::size_t>(ranks_); ++q) {
    std::size_t row =
        transfer_ == Transfer::put_get ? q * most : static_cast<std::size_t>(receive_at_[q]);
    for (std::size_t e = 0; e < scale_.size(); ++e) {
      for (int i = 0; i < received_[q * scale_.size() + e]; ++i, ++row) {
        if (transfer_ == Transfer::put_get) {
          std::byte* in = window_rows_ + row * row_bytes_;
          run_expert(scale_[e], in, hidden,
                     in + static_cast<std::size_t>(ranks_) * most * row_bytes_);
        } else {
          run_expert(scale_[e], receive_.row(row), hidden, outputs_.row(row));
        }
      }
    }
  }
}

void MessageWay::get_outputs() {
  const std::size_t most = static_cast<std::size_t>(shape_.max_tokens()) * topk_;
  expect(MPI_Win_sync(window_), "MPI_Win_sync");
  expect(MPI_Barrier(MPI_COMM_WORLD), "MPI_Barrier");
  for (std::size_t owner = 0; owner < static_cast<std::size_t>(ranks_); ++owner) {
    if (send_counts_[owner] == 0) continue;
    const auto at = static_cast<MPI_Aint>(
        (static_cast<std::size_t>(ranks_) + static_cast<std::size_t>(rank_)) * most);
    expect(MPI_Get(returned_.row(static_cast<std::size_t>(send_at_[owner])), send_counts_[owner],
                   row_type_, static_cast<int>(owner), at, send_counts_[owner], row_type_, window_),
           "MPI_Get");
  }
  expect(MPI_Win_flush_all(window_), "MPI_Win_flush_all");
  expect(MPI_Barrier(MPI_COMM_WORLD), "MPI_Barrier");  // before rows are put again
}

void MessageWay::combine(const Rows& out) {
  if (transfer_ == Transfer::put_get) {
    get_outputs();
  } else if (transfer_ == Transfer::packed) {
    regroup(outputs_, receive_, true);
    all_to_all(receive_, receive_counts_, receive_at_, returned_, send_counts_, send_at_);
  } else {
    all_to_all(outputs_, receive_counts_, receive_at_, returned_, send_counts_, send_at_);
  }
  for (std::int64_t t = 0; t < out.num_rows; ++t) {
    std::array<const std::byte*, 64> rows;
    std::array<float, 64> weights;
    std::size_t count = 0;
    const std::size_t first = static_cast<std::size_t>(t) * topk_;
    for (std::size_t i = first; i < first + topk_; ++i) {
      if (routing_->topk_idx[i] < 0) continue;
      rows[count] = returned_.row(place_[i]);
      weights[count++] = routing_->topk_weights[i];
    }
    sum_rows({.rows = {rows.data(), count},
              .weights = weights.data(),
              .hidden = static_cast<std::size_t>(shape_.hidden)},
             out.row(t));
  }
}

// As AllToAll.
void all_to_all_bytes(std::byte* send, const std::vector<std::size_t>& send_bytes,
                      std::byte* receive, const std::vector<std::size_t>& receive_bytes) {
  const auto layout = [](const std::vector<std::size_t>& bytes, std::vector<int>& counts,
                         std::vector<int>& at) {
    counts.assign(bytes.begin(), bytes.end());
    at.resize(counts.size());
    std::exclusive_scan(counts.begin(), counts.end(), at.begin(), 0);
  };
  static std::vector<int> send_counts, send_at, receive_counts, receive_at;
  layout(send_bytes, send_counts, send_at);
  layout(receive_bytes, receive_counts, receive_at);
  expect(MPI_Alltoallv(send, send_counts.data(), send_at.data(), MPI_BYTE, receive,
                       receive_counts.data(), receive_at.data(), MPI_BYTE, MPI_COMM_WORLD),
         "MPI_Alltoallv");
}

std::string library() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text = {};
  int length = 0;
  MPI_Get_library_version(text.data(), &length);
  return std::string(text.data()).starts_with("Open MPI") ? "Open MPI" : "MPICH";
}

}  // namespace

void start_mpi(const Group& group) {
  int started = 0;
  MPI_Initialized(&started);
  if (started == 0) expect(MPI_Init(nullptr, nullptr), "MPI_Init");
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (size == group.size()) return;
  throw std::runtime_error(library() + " sees " + std::to_string(size) + " ranks of " +
                           std::to_string(group.size()) + ": start this program by its mpirun");
}

void stop_mpi() { MPI_Finalize(); }

void add_mpi(std::vector<NamedWay>& ways, Group& group, const Shape& shape) {
  const std::string mpi = library();
  const auto add = [&](const char* name, Kind kind, std::unique_ptr<Way> way, const char* text) {
    ways.push_back({{mpi + " " + name, kind, Layout::expert_major, text}, std::move(way)});
  };
  const auto window = [&](const DirectChoice& choice) {
    return std::make_unique<WindowWay>(
        group, shape, choice,
        std::make_shared<SharedWindow>(DirectWay::area_bytes(shape) + 64, group.size()));
  };
  if (!group.spans_hosts()) {
    add("window", Kind::window, window({}), "MPI_Win_allocate_shared, plain stores, MPI_Barrier");
    add("window streamed", Kind::window, window({.rows = Store::far}), "the same, rows streamed");
  }
  const auto messages = [&](Transfer transfer) {
    return std::make_unique<MessageWay>(group, shape, transfer);
  };
  add("alltoallv packed", Kind::messages, messages(Transfer::packed),
      "counts, pack, MPI_Alltoallv, regroup by expert, and back");
  add("alltoallv", Kind::messages, messages(Transfer::unpermuted),
      "the same without regrouping: experts work on a segment per source");
  ways.push_back({{mpi + " alltoallv by rank", Kind::messages, Layout::rank_major,
                   "a row and its routing once to each rank by MPI_Alltoallv, that rank's sum back",
                   rank_exchange_tolerance(group)},
                  make_rank_exchange(group, shape, all_to_all_bytes)});
  // Open MPI 4.1 over TCP: MPI_Win_allocate fails.
  if (group.spans_hosts()) return;
  add("put/get", Kind::messages, messages(Transfer::put_get),
      "MPI_Put of every row, MPI_Get of the outputs, flushes and barriers");
}

}  // namespace ubep::rivals
