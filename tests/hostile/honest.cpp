#include "hostile/honest.hpp"

#include <fmt/format.h>

#include <cstring>

namespace ubep::test {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto index(std::int64_t i) { return static_cast<std::size_t>(i); }

// Beyond its timeout, for a call that has to share its CPU.
constexpr std::chrono::seconds kSlack{6};

std::uint64_t bit(int rank) { return std::uint64_t{1} << rank; }

// Whether no received row can lie in an inbox, whatever path a peer says that it takes.
bool are_rows_apart(const Scene& scene) {
  const Path path = scene.dispatch.path;
  if (!scene.options.push || path == Path::read) return true;
  const Protocol protocol = scene.options.protocol;
  const bool decodes = protocol >= Protocol::token_flag_16 && protocol <= Protocol::sentinel;
  return decodes && (path == Path::pull || path == Path::allgather);
}

}  // namespace

int Honest::complain(const std::string& what) const {
  fmt::print(stderr, "{}: rank {} ({} ranks, rank {} is hostile; {}, {}): {}\n", scene_.job, rank_,
             scene_.problem.num_ranks(), scene_.hostile, name(scene_.problem.layout),
             name(scene_.dispatch.path), what);
  return kWrongBytes;
}

Status Honest::timed(const std::function<Status()>& call) {
  const auto begin = Clock::now();
  const Status status = call();
  if (Clock::now() - begin > scene_.options.timeout + kSlack) {
    (void)complain("a call came back too late: " + status.message());
    overdue_ = true;
  }
  ++report_.calls[static_cast<std::size_t>(status.code)];
  if (status.code == Code::peer_lost) lost_ |= status.missing;
  return status;
}

// -1: go on.
int Honest::after(const Status& status) const {
  if (overdue_) return kOverdue;
  switch (status.code) {
    case Code::ok:
    case Code::peer_lost:
      return -1;
    case Code::corrupt:
    case Code::mismatch:
    case Code::timeout:
      return kGood;
    default:
      (void)complain("not a verdict of this: " + status.message());
      return kUnexpected;
  }
}

Status Honest::combine(Communicator& comm) {
  CombineArgs args = worker_->prepare_combine();
  if (!scene_.by_expert) return comm.combine(worker_->handle, args);
  args.by_expert = true;
  const Status started = comm.start_combine(worker_->handle, args);
  if (!started.ok()) return started;
  for (int expert = 0; expert < comm.num_local_experts(); ++expert) {
    const Status status = comm.publish(worker_->handle, expert);
    if (!status.ok()) return status;
    (void)comm.step();
  }
  return comm.wait(worker_->handle);
}

int Honest::run(Communicator& comm, const std::function<void()>& between) {
  Worker worker(scene_.problem, rank_, scene_.dispatch);
  worker_ = &worker;
  for (int round = 0; round < scene_.rounds; ++round) {
    const Status dispatched = timed([&] { return worker.dispatch(comm); });
    if (const int ending = after(dispatched); ending >= 0) return ending;
    std::string difference;
    if (!is_right(worker.handle.received(), difference)) return complain(difference);
    between();
    const Status combined = timed([&] { return combine(comm); });
    if (const int ending = after(combined); ending >= 0) return ending;
    // With allgather a row of every rank is part of every sum.
    const bool is_own = scene_.dispatch.path != Path::allgather;
    if (is_own && are_rows_apart(scene_)) {
      difference = worker.out_difference(lost_ | bit(scene_.hostile), bit(scene_.hostile));
      if (!difference.empty()) return complain(difference);
      report_.tokens += scene_.problem.ranks[index(rank_)].tokens;
    }
    between();
  }
  return kGood;
}

// What one source sends here.
const ExpectedReceived& Honest::from(int source) {
  if (expected_.empty()) {
    for (int q = 0; q < scene_.problem.num_ranks(); ++q) {
      Problem problem = scene_.problem;
      problem.sources = Ranks().set(index(q));
      expected_.push_back(expected_received(problem, rank_));
    }
  }
  return expected_[index(source)];
}

bool Honest::same_row(const Received& received, std::int64_t row, const ExpectedReceived& want,
                      std::int64_t i) const {
  // Else anybody may have written there.
  if (!are_rows_apart(scene_)) return true;
  ++report_.rows;
  return std::memcmp(received.row(row), want.rows.data() + index(i) * want.row_bytes,
                     want.row_bytes) == 0;
}

bool Honest::is_right(const Received& received, std::string& difference) {
  return scene_.problem.layout == Layout::rank_major ? is_right_by_rank(received, difference)
                                                     : is_right_by_expert(received, difference);
}

bool Honest::is_right_by_rank(const Received& received, std::string& difference) {
  std::int64_t row = 0;
  for (int q = 0; q < scene_.problem.num_ranks(); ++q) {
    const ExpectedReceived& want = from(q);
    const std::int64_t rows = received.src_counts[index(q)];
    const std::int64_t first = row;
    row += rows;
    if (q == scene_.hostile || (rows == 0 && (received.sources & bit(q)) == 0)) continue;
    if (rows != want.num_rows) {
      difference = fmt::format("{} rows of rank {}, expected {}", rows, q, want.num_rows);
      return false;
    }
    const std::size_t topk = index(received.topk);
    const std::size_t at = index(first) * topk;
    for (std::size_t i = 0; i < index(rows) * topk; ++i) {
      if (received.topk_idx[at + i] == want.topk_idx[i] &&
          received.topk_weights[at + i] == want.topk_weights[i]) {
        continue;
      }
      difference = fmt::format("choice {} of the rows of rank {}", i, q);
      return false;
    }
    // What a lost source had not pushed is zero.
    if ((received.sources & bit(q)) == 0) continue;
    for (std::int64_t i = 0; i < rows; ++i) {
      if (same_row(received, first + i, want, i)) continue;
      difference = fmt::format("row {} of rank {}", i, q);
      return false;
    }
  }
  return true;
}

// The hostile rank's rows are what the honest ones' leave of an expert's.
bool Honest::is_right_by_expert(const Received& received, std::string& difference) {
  const int ranks = scene_.problem.num_ranks();
  // Those who are lost may have kept their places, or not.
  const std::uint64_t all = (bit(ranks) - 1) & ~bit(scene_.hostile);
  if (scene_.options.push && (received.sources & all) != all) return true;
  std::vector<std::int64_t> next(index(ranks));  // row of a source in its own list
  for (std::size_t e = 0; e < received.expert_counts.size(); ++e) {
    std::int64_t others = received.expert_counts[e];
    for (int q = 0; q < ranks; ++q) {
      if ((received.sources & all & bit(q)) != 0) others -= from(q).expert_counts[e];
    }
    std::int64_t row = received.expert_offsets[e];
    for (int q = 0; q < ranks && others >= 0; ++q) {
      if (q == scene_.hostile) row += others;
      if ((received.sources & all & bit(q)) == 0) continue;
      const ExpectedReceived& want = from(q);
      for (std::int32_t i = 0; i < want.expert_counts[e]; ++i, ++row) {
        if (same_row(received, row, want, want.expert_offsets[e] + i)) continue;
        difference = fmt::format("row {} of rank {} for local expert {}", i, q, e);
        return false;
      }
    }
    if (others < 0) {
      difference = fmt::format("{} rows are missing for local expert {}", -others, e);
      return false;
    }
  }
  return true;
}

}  // namespace ubep::test
