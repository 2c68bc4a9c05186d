// ubep_hosts_loop ROUNDS [wait]: a rank that dispatches and combines every 5 ms or so, over relay,
// and tells every answer that is not ok. Its first timeout or loss is its last, unless it shall
// wait.
//
// The last line says how many rounds were right. Status: 0 = all of them, 1 = wrong bytes, 3 =
// other ranks were waited for in vain, or lost.
#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <exception>
#include <string>
#include <thread>

#include "support/worker.hpp"

namespace {

using namespace ubep::test;
using ubep::Code;
using ubep::Status;

class Loop {
 public:
  Loop(int rounds, bool waits) : most_(rounds), waits_(waits) {}

  int run() {
    const ubep::Bootstrap bootstrap = ubep::Bootstrap::from_environment();
    Problem problem = make_problem({.ranks = bootstrap.size, .tokens = 32, .hidden = 512});
    auto comm = ubep::Communicator::create(bootstrap, {.num_experts = problem.num_experts,
                                                       .max_tokens = 32,
                                                       .max_hidden = 512,
                                                       .max_topk = problem.topk});
    for (int r = 0; r < bootstrap.size; ++r) {
      problem.host_of.push_back(comm.facts().host_of[static_cast<std::size_t>(r)]);
    }
    Worker worker(problem, bootstrap.rank, {.path = ubep::Path::relay});
    int status = 0;
    while (status == 0 && rounds_ < most_) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      status = finish(comm, worker, worker.dispatch(comm), true);
      if (status == 0) status = finish(comm, worker, worker.combine(comm), false);
      rounds_ += status == 0 ? 1 : 0;
    }
    fmt::print(stderr, "{} rounds\n", rounds_);
    return status;
  }

 private:
  int finish(ubep::Communicator& comm, Worker& worker, Status status, bool dispatches) {
    while (!status.ok()) {
      fmt::print(stderr, "{}\n", status.message());
      if (!waits_ || status.code != Code::timeout) return 3;
      status = worker.handle.holds_lease() || !dispatches ? comm.wait(worker.handle)
                                                          : worker.dispatch(comm);
    }
    const std::string wrong = dispatches ? worker.received_difference() : worker.out_difference();
    if (!wrong.empty()) fmt::print(stderr, "wrong: {}\n", wrong);
    return wrong.empty() ? 0 : 1;
  }

  int most_;
  bool waits_;
  int rounds_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  try {
    return Loop(argc > 1 ? std::atoi(argv[1]) : 1, argc > 2).run();
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 2;
  }
}
