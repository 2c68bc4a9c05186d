// What dispatch and combine of one rank cost in instructions, counted by callgrind.
//
// All ranks' communicators live in this process, and after their creation one thread moves them in
// turn: nothing waits, so the same build counts the same. Only the calls of rank 0 are counted;
// each case and operation is one dump of callgrind's, named "CASE OPERATION LAYERS".
// scripts/check_instructions.py runs this under valgrind and reads the dumps; without valgrind it
// does the same work and counts nothing.
#include <gnu/libc-version.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "ubep/ubep.hpp"

#if __has_include(<valgrind/callgrind.h>)
#include <valgrind/callgrind.h>
#else
#define CALLGRIND_TOGGLE_COLLECT (void)0
#define CALLGRIND_ZERO_STATS (void)0
#define CALLGRIND_DUMP_STATS_AT(name) (void)(name)
#define UBEP_NO_CALLGRIND
#endif

namespace {

using ubep::Code;
using ubep::Communicator;
using ubep::Layout;
using ubep::Path;
using ubep::Store;
using ubep::Weighting;

constexpr int kTopk = 8;
constexpr int kMostRounds = 100;

struct Case {
  const char* name;
  Layout layout;
  Path path;
  Weighting weighting = Weighting::kernel;
  Store store = Store::near;
  int ranks = 2;
  int experts = 64;
  int tokens = 1;
  int hidden = 128;  // so small that the bookkeeping is most of it
  int layers = 16;   // counted; each with a routing of its own
};

constexpr Layout kRank = Layout::rank_major;
constexpr Layout kExpert = Layout::expert_major;

const Case kCases[] = {
    {.name = "read", .layout = kRank, .path = Path::read},
    {.name = "read-owner", .layout = kRank, .path = Path::read, .weighting = Weighting::owner},
    {.name = "read-far", .layout = kRank, .path = Path::read, .store = Store::far},
    {.name = "rank-push", .layout = kRank, .path = Path::push},
    {.name = "pull", .layout = kExpert, .path = Path::pull},
    {.name = "pull-far", .layout = kExpert, .path = Path::pull, .store = Store::far},
    {.name = "push", .layout = kExpert, .path = Path::push},
    {.name = "read-experts256", .layout = kRank, .path = Path::read, .experts = 256},
    {.name = "read-owner-experts256",
     .layout = kRank,
     .path = Path::read,
     .weighting = Weighting::owner,
     .experts = 256},
    {.name = "pull-experts256", .layout = kExpert, .path = Path::pull, .experts = 256},
    {.name = "push-experts256", .layout = kExpert, .path = Path::push, .experts = 256},
    {.name = "read-ranks8", .layout = kRank, .path = Path::read, .ranks = 8},
    {.name = "pull-ranks8", .layout = kExpert, .path = Path::pull, .ranks = 8},
    {.name = "push-ranks8", .layout = kExpert, .path = Path::push, .ranks = 8},
    {.name = "read-tokens32", .layout = kRank, .path = Path::read, .tokens = 32, .layers = 4},
    {.name = "read-owner-tokens32",
     .layout = kRank,
     .path = Path::read,
     .weighting = Weighting::owner,
     .tokens = 32,
     .layers = 4},
    {.name = "pull-tokens32", .layout = kExpert, .path = Path::pull, .tokens = 32, .layers = 4},
    {.name = "push-tokens32", .layout = kExpert, .path = Path::push, .tokens = 32, .layers = 4},
    {.name = "read-rows7168",
     .layout = kRank,
     .path = Path::read,
     .tokens = 32,
     .hidden = 7168,
     .layers = 2},
    {.name = "pull-rows7168",
     .layout = kExpert,
     .path = Path::pull,
     .tokens = 32,
     .hidden = 7168,
     .layers = 2},
};

// Not the standard library's generators: their distributions may change with it.
class Random {
 public:
  int below(int bound) {
    state_ = state_ * 6364136223846793005U + 1442695040888963407U;
    return static_cast<int>((state_ >> 33) % static_cast<std::uint64_t>(bound));
  }

 private:
  std::uint64_t state_ = 1;
};

// One rank: its communicator, and tokens of ones.
struct Rank {
  Rank(const ubep::Bootstrap& bootstrap, const Case& c)
      : comm(Communicator::create(bootstrap, {.num_experts = c.experts,
                                              .max_tokens = c.tokens,
                                              .max_hidden = c.hidden,
                                              .max_topk = kTopk,
                                              .store = c.store})),
        topk_idx(static_cast<std::size_t>(c.tokens) * kTopk),
        topk_weights(topk_idx.size(), 1.0F / kTopk),
        x(static_cast<std::size_t>(c.tokens) * static_cast<std::size_t>(c.hidden), 0x3F80),
        out(x.size()) {}

  Communicator comm;
  ubep::Handle handle;
  std::vector<std::int32_t> topk_idx;
  std::vector<float> topk_weights;
  std::vector<std::uint16_t> x;
  std::vector<std::uint16_t> out;
};

using Ranks = std::vector<std::unique_ptr<Rank>>;

// Creation is collective and waits: a thread for each rank, all gone afterwards.
Ranks make_ranks(const Case& c) {
  Ranks ranks(static_cast<std::size_t>(c.ranks));
  const ubep::ThreadGroup group(c.ranks);
  std::vector<std::exception_ptr> errors(ranks.size());
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    threads.emplace_back([&, r] {
      try {
        ranks[r] = std::make_unique<Rank>(group.bootstrap(static_cast<int>(r)), c);
      } catch (...) {
        errors[r] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  return ranks;
}

// Every token names kTopk different experts.
void choose_experts(const Case& c, Random& random, std::vector<std::int32_t>& topk_idx) {
  for (std::size_t first = 0; first < topk_idx.size(); first += kTopk) {
    for (std::size_t k = 0; k < kTopk;) {
      topk_idx[first + k] = random.below(c.experts);
      bool is_new = true;
      for (std::size_t j = 0; j < k; ++j) is_new &= topk_idx[first + j] != topk_idx[first + k];
      if (is_new) ++k;
    }
  }
}

// A row of eighths, 0 to 8 of them: bf16 holds them and their sums.
std::vector<std::uint16_t> row_of(int eighths, int hidden) {
  const float value = static_cast<float>(eighths) / kTopk;
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  return std::vector<std::uint16_t>(static_cast<std::size_t>(hidden),
                                    static_cast<std::uint16_t>(bits >> 16));
}

// The experts: each puts out ones, times the row's weights where that is the kernel's task.
void run_experts(const Case& c, ubep::Handle& handle) {
  const ubep::Received& received = handle.received();
  const auto bytes = static_cast<std::size_t>(c.hidden) * sizeof(std::uint16_t);
  const auto ones = row_of(kTopk, c.hidden);
  for (std::int64_t i = 0; i < received.num_rows; ++i) {
    if (std::memcmp(received.row(i), ones.data(), bytes) != 0) {
      throw std::runtime_error("a token arrived changed");
    }
  }
  ubep::Rows output = handle.expert_output();
  for (std::int64_t i = 0; i < output.num_rows; ++i) {
    int eighths = kTopk;
    if (c.layout == kRank && c.weighting == Weighting::kernel) {
      const auto first = received.topk_idx.begin() + i * kTopk;
      eighths -= static_cast<int>(std::count(first, first + kTopk, -1));
    }
    std::memcpy(output.row(i), row_of(eighths, c.hidden).data(), bytes);
  }
}

// Calls `call(rank)` for every rank, rank 0 last and counted where `counted` says so.
template <class Call>
void in_turn(Ranks& ranks, bool counted, Call call) {
  for (std::size_t r = ranks.size() - 1; r > 0; --r) call(*ranks[r]);
  if (counted) CALLGRIND_TOGGLE_COLLECT;
  call(*ranks[0]);
  if (counted) CALLGRIND_TOGGLE_COLLECT;
}

bool is_pending(const Rank& rank) { return rank.comm.poll(rank.handle).code == Code::not_ready; }

// Until the latest operation of every rank is complete. A rank that is done is left alone.
void finish(Ranks& ranks, bool counted) {
  for (int round = 0; round < kMostRounds; ++round) {
    bool all_done = true;
    for (const auto& rank : ranks) all_done = all_done && !is_pending(*rank);
    if (all_done) {
      for (const auto& rank : ranks) rank->comm.poll(rank->handle).or_throw();
      return;
    }
    in_turn(ranks, counted, [](Rank& rank) {
      if (is_pending(rank)) (void)rank.comm.step();
    });
  }
  throw std::runtime_error("an operation is not complete after 100 rounds");
}

void dispatch(const Case& c, Ranks& ranks, bool counted) {
  const ubep::DispatchOptions options{.layout = c.layout, .path = c.path, .weighting = c.weighting};
  in_turn(ranks, counted, [&](Rank& rank) {
    const ubep::ConstRows x(rank.x.data(), c.tokens, c.hidden, ubep::DType::bf16);
    const ubep::Routing routing{rank.topk_idx, rank.topk_weights, kTopk};
    rank.comm.start_dispatch(x, routing, options, rank.handle).or_throw();
  });
  finish(ranks, counted);
}

void combine(const Case& c, Ranks& ranks, bool counted) {
  in_turn(ranks, counted, [&](Rank& rank) {
    const ubep::Rows out{rank.out.data(), c.tokens, c.hidden, ubep::DType::bf16};
    rank.comm.start_combine(rank.handle, {.out = out}).or_throw();
  });
  finish(ranks, counted);
}

enum class Counted : std::uint8_t { nothing, dispatch, combine };

// Layers, of the same routings each time this is called; what comes back is what was sent.
void run_layers(const Case& c, Ranks& ranks, int layers, Counted counted) {
  Random random;
  for (int layer = 0; layer < layers; ++layer) {
    for (auto& rank : ranks) {
      choose_experts(c, random, rank->topk_idx);
      std::fill(rank->out.begin(), rank->out.end(), std::uint16_t{0});
    }
    dispatch(c, ranks, counted == Counted::dispatch);
    for (auto& rank : ranks) run_experts(c, rank->handle);
    combine(c, ranks, counted == Counted::combine);
    for (auto& rank : ranks) {
      if (rank->out != rank->x) throw std::runtime_error("a token came back changed");
    }
  }
}

// Dispatch and combine are told apart by counting the same layers twice, after a first time in
// which buffers get their sizes.
void count(const Case& c) {
  Ranks ranks = make_ranks(c);
  run_layers(c, ranks, c.layers, Counted::nothing);
  for (const bool is_dispatch : {true, false}) {
    CALLGRIND_ZERO_STATS;
    run_layers(c, ranks, c.layers, is_dispatch ? Counted::dispatch : Counted::combine);
    const std::string name =
        std::string(c.name) + (is_dispatch ? " dispatch " : " combine ") + std::to_string(c.layers);
    CALLGRIND_DUMP_STATS_AT(name.c_str());
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    std::printf("%s\nflags %s, libc %s, callgrind.h %s\n", ubep::build_facts().c_str(),
                UBEP_BUILD_FLAGS, gnu_get_libc_version(),
#ifdef UBEP_NO_CALLGRIND
                "missing"
#else
                "found"
#endif
    );
    bool is_known = argc < 2;
    for (const Case& c : kCases) {
      if (argc >= 2 && std::strcmp(argv[1], c.name) != 0) continue;
      is_known = true;
      count(c);
    }
    if (!is_known) throw std::runtime_error(std::string("no case is called ") + argv[1]);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "ubep_instructions: %s\n", error.what());
    return 1;
  }
}
