// A small fixed workload and one rank's part in it: what the process tests drive by hand.
//
//   const Problem problem = make_problem({.ranks = 3});
//   run_ranks(kind, 3, [&](const Bootstrap& bootstrap) {
//     Communicator comm = Communicator::create(bootstrap, options_for(problem));
//     Worker worker(problem, bootstrap.rank);
//     EXPECT_EQ(worker.round(comm), "");
//   });
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "support/reference.hpp"
#include "ubep/communicator.hpp"

namespace ubep::test {

struct ProblemShape {
  int ranks = 2;
  int experts_per_rank = 2;
  int tokens = 6;  // of every rank
  int hidden = 24;
  int topk = 2;
  Layout layout = Layout::rank_major;
  DType dtype = DType::bf16;
  std::uint64_t seed = 1;
};

Problem make_problem(const ProblemShape& shape);
// Room for exactly this problem.
CommunicatorOptions options_for(const Problem& problem);

class Worker {
 public:
  Worker(const Problem& problem, int rank, const DispatchOptions& options = {});

  Status dispatch(Communicator& comm);
  Status start_dispatch(Communicator& comm);
  // As soon as the peers have given the slot back.
  Status start_dispatch_when_ready(Communicator& comm);
  Status start_dispatch(Communicator& comm, const Handle& cached);
  // The experts run first.
  Status combine(Communicator& comm);
  Status start_combine(Communicator& comm);
  // The experts alone; what their combine takes.
  CombineArgs prepare_combine();

  // "" or the first difference from the reference; rows of sources that were lost are absent, or
  // zero.
  std::string received_difference() const;
  // "" or the first difference in tokens that are marked valid; a token may be marked invalid only
  // when it chose an expert of a rank in `lost`. Tokens that chose one of a rank in `untrusted` are
  // not looked at.
  std::string out_difference(std::uint64_t lost = 0, std::uint64_t untrusted = 0) const;
  // dispatch, combine, both compared: "" or what went wrong.
  std::string round(Communicator& comm);

  Handle handle;

  ConstRows x() const;
  Routing routing() const;
  const DispatchOptions& options() const { return options_; }

 private:
  const Problem& problem_;
  int rank_;
  DispatchOptions options_;
  std::vector<std::byte> out_;
};

}  // namespace ubep::test
