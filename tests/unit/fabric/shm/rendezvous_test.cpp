// Set-up of a group and its refusals. Ranks are forked processes, or threads where it says so.
#include "fabric/shm/thread_rendezvous.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "base/fabric_facts.hpp"
#include "fabric/shm/socket.hpp"
#include "support/ranks.hpp"
#include "ubep/status.hpp"
#include "ubep/version.hpp"

namespace ubep {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t kBytes = 16'384;

struct Outcome {
  bool joined = false;
  char error[500] = {};
  std::byte seen[4] = {};  // first data byte of each rank's segment
};

JoinRequest request_of(int rank, int size, const std::string& test,
                       std::chrono::milliseconds patience = 20s) {
  JoinRequest request{.rank = rank,
                      .size = size,
                      .job = "rendezvous-test-" + std::to_string(getpid()) + "-" + test,
                      .deadline = std::chrono::steady_clock::now() + patience,
                      .fields = {{{"num_experts", 8}, {"slots", 2}}},
                      .segment_bytes = {}};
  request.segment_bytes.assign(static_cast<std::size_t>(size), kBytes);
  return request;
}

// Joins with a segment whose first free byte is 100 + rank.
Outcome join(const JoinRequest& request, std::uint64_t bytes = kBytes) {
  Outcome outcome;
  try {
    auto own = std::make_shared<Segment>(Segment::create(bytes, request.rank));
    own->data()[kFabricHeaderBytes] = static_cast<std::byte>(100 + request.rank);
    const Segments segments = join_processes(request, own).segments;
    outcome.joined = true;
    for (std::size_t r = 0; r < segments.size(); ++r) {
      // Peers wrote before they joined.
      outcome.seen[r] = segments[r]->data()[kFabricHeaderBytes];
    }
  } catch (const Error& error) {
    std::snprintf(outcome.error, sizeof(outcome.error), "%.400s", error.what());
  }
  return outcome;
}

// Each body in a child of its own, except the first, which runs here.
std::vector<Outcome> run(const std::vector<std::function<Outcome()>>& bodies) {
  const test::SharedArray<Outcome> results(bodies.size());
  std::vector<pid_t> children;
  for (std::size_t i = 1; i < bodies.size(); ++i) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(30);
      results[i] = bodies[i]();
      _exit(0);
    }
    children.push_back(child);
  }
  results[0] = bodies[0]();
  for (const pid_t child : children) {
    int status = -1;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
  std::vector<Outcome> outcomes;
  for (std::size_t i = 0; i < bodies.size(); ++i) outcomes.push_back(results[i]);
  return outcomes;
}

// Where rank 0 listens.
std::string socket_name(const JoinRequest& request) {
  char name[64];
  std::snprintf(name, sizeof(name), "ubep-%u-%016zx", geteuid(),
                std::hash<std::string>{}(request.job));
  return name;
}

// The message of a joining rank, as it goes over the wire.
struct Hello {
  std::uint64_t magic = 0x3150454255;
  std::uint32_t wire_version = kWireVersion;
  std::int32_t rank = 1;
  std::int32_t size = 2;
  std::int32_t pid = 0;
  std::uint64_t keyed = 0;
  std::uint64_t nonce[4] = {};
  std::uint64_t fields[kMaxAgreedFields] = {8, 2};
};

void expect_error(const Outcome& outcome, const std::string& text) {
  EXPECT_FALSE(outcome.joined);
  EXPECT_NE(std::string(outcome.error).find(text), std::string::npos) << outcome.error;
}

TEST(RendezvousTest, EveryRankGetsEverySegmentInRankOrder) {
  std::vector<std::function<Outcome()>> bodies;
  for (int r = 0; r < 4; ++r) {
    const JoinRequest request = request_of(r, 4, "all");
    bodies.emplace_back([request] { return join(request); });
  }
  for (const Outcome& outcome : run(bodies)) {
    EXPECT_TRUE(outcome.joined) << outcome.error;
    for (int r = 0; r < 4; ++r) EXPECT_EQ(outcome.seen[r], static_cast<std::byte>(100 + r));
  }
}

TEST(RendezvousTest, OneRankNeedsNobody) { EXPECT_TRUE(join(request_of(0, 1, "alone")).joined); }

TEST(RendezvousTest, ADifferenceIsNamedToBoth) {
  JoinRequest other = request_of(1, 2, "fields");
  other.fields[1].value = 3;
  const auto outcomes =
      run({[] { return join(request_of(0, 2, "fields")); }, [&] { return join(other); }});
  for (const Outcome& outcome : outcomes) {
    expect_error(outcome, "slots differs: rank 0 has 2, rank 1 has 3");
  }
}

TEST(RendezvousTest, SizesMustBeAlike) {
  const auto outcomes = run({[] { return join(request_of(0, 2, "size")); },
                             [r = request_of(1, 3, "size")] { return join(r); }});
  expect_error(outcomes[0], "size differs: rank 0 has 2, rank 1 has 3");
  expect_error(outcomes[1], "refused by rank 0: size differs");
}

TEST(RendezvousTest, ARankMayJoinOnce) {
  const auto outcomes = run({[] { return join(request_of(0, 3, "twice")); },
                             [r = request_of(1, 3, "twice")] { return join(r); },
                             [r = request_of(1, 3, "twice")] { return join(r); }});
  for (const Outcome& outcome : outcomes) expect_error(outcome, "rank 1 joined twice");
}

// The second finds the name taken; as rank 1 it is welcome.
TEST(RendezvousTest, ThereIsOneRankZero) {
  JoinRequest request = request_of(0, 2, "zero");
  const auto outcomes = run({[&] { return join(request); },
                             [&] {
                               // Connecting and leaving again tells that rank 0 listens.
                               (void)Socket::connect(socket_name(request), request.deadline);
                               const Outcome refused = join(request);
                               request.rank = 1;
                               const Outcome welcome = join(request);
                               return welcome.joined ? refused : welcome;
                             }});
  EXPECT_TRUE(outcomes[0].joined) << outcomes[0].error;
  expect_error(outcomes[1], "in use: another rank 0");
}

TEST(RendezvousTest, MissingRanksAreNamedToThoseWhoCame) {
  const auto outcomes = run({[] { return join(request_of(0, 4, "missing", 300ms)); },
                             [r = request_of(2, 4, "missing", 300ms)] { return join(r); }});
  expect_error(outcomes[0], "timeout: rank 1, 3 did not arrive");
  expect_error(outcomes[1], "refused by rank 0: rank 0: timeout: rank 1, 3 did not arrive");
}

TEST(RendezvousTest, WithoutRankZeroAGuestTimesOut) {
  const auto begin = std::chrono::steady_clock::now();
  const JoinRequest request = request_of(1, 2, "no-host", 200ms);
  const Outcome outcome = join(request);
  expect_error(outcome, "rank 1: timeout: rank 0 did not arrive for job '" + request.job +
                            "' of 2 ranks (socket @" + socket_name(request) + ")");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 5s);
}

// A rank of an earlier job of this name, or started twice: all are told, also who comes later.
TEST(RendezvousTest, DoubledRanksAreNamedByProcess) {
  const auto outcomes = run({[] { return join(request_of(0, 3, "stale")); },
                             [r = request_of(1, 3, "stale")] { return join(r); },
                             [r = request_of(1, 3, "stale")] { return join(r); },
                             [r = request_of(2, 3, "stale")] {
                               std::this_thread::sleep_for(300ms);  // likely the last, not surely
                               return join(r);
                             }});
  for (const Outcome& outcome : outcomes) {
    expect_error(outcome, "rank 1 joined twice: processes ");
    expect_error(outcome, "-stale')");
  }
}

// Introduces itself and ends before the set-up has.
Outcome hello_and_leave(const JoinRequest& request) {
  const Socket socket = Socket::connect(socket_name(request), request.deadline);
  const Segment segment = Segment::create(kBytes, request.rank);
  const Hello hello{.rank = request.rank, .size = request.size, .pid = getpid()};
  Outcome outcome;
  outcome.joined = socket.send(&hello, sizeof(hello), {segment.fd()});
  return outcome;
}

// At once, though the deadline is far.
TEST(RendezvousTest, ARankThatGoesAwayBeforeAllAreThereIsNamed) {
  const auto begin = std::chrono::steady_clock::now();
  const auto outcomes = run({[] { return join(request_of(0, 4, "gone")); },
                             [r = request_of(1, 4, "gone")] { return hello_and_leave(r); },
                             [r = request_of(2, 4, "gone")] { return join(r); }});
  for (const std::size_t r : {0UL, 2UL}) {
    expect_error(outcomes[r], "rank 1 (process ");
    expect_error(outcomes[r], "went away during set-up");
    expect_error(outcomes[r], "3 had not arrived");
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 10s);
}

// After all have arrived: it has the others' segments, but never hears "go".
TEST(RendezvousTest, ARankThatGoesAwayBeforeGoIsNamed) {
  const auto outcomes = run({[] { return join(request_of(0, 3, "late")); },
                             [r = request_of(1, 3, "late")] {
                               const Socket socket = Socket::connect(socket_name(r), r.deadline);
                               const Segment segment = Segment::create(kBytes, 1);
                               const Hello hello{.size = 3, .pid = getpid()};
                               (void)socket.send(&hello, sizeof(hello), {segment.fd()});
                               char answer[600] = {};
                               std::vector<int> fds;
                               Outcome outcome;
                               outcome.joined =
                                   socket.receive(answer, sizeof(answer), fds, r.deadline) > 0;
                               return outcome;
                             },
                             [r = request_of(2, 3, "late")] { return join(r); }});
  EXPECT_TRUE(outcomes[1].joined);
  for (const std::size_t r : {0UL, 2UL}) {
    expect_error(outcomes[r], "rank 1 (process ");
    expect_error(outcomes[r], "went away during set-up");
  }
}

// Rank 0 is killed while it waits: the others wait for another one, then say what they saw.
TEST(RendezvousTest, ARankZeroThatGoesAwayIsNamed) {
  const auto outcomes = run({[] { return join(request_of(1, 3, "host", 500ms)); },
                             [r = request_of(0, 3, "host")] {
                               const Socket listener = Socket::listen(socket_name(r), 3);
                               const Socket guest = listener.accept(r.deadline);
                               Outcome outcome;
                               outcome.joined = guest.valid();
                               return outcome;  // and ends
                             }});
  EXPECT_TRUE(outcomes[1].joined);
  expect_error(outcomes[0], "rank 1: rank 0 (process ");
  expect_error(outcomes[0], "went away during set-up of job");
}

// It had handed out the segments, but not said "go".
TEST(RendezvousTest, ARankZeroThatGoesAwayBeforeGoIsNamed) {
  const auto outcomes = run({[] { return join(request_of(1, 2, "host-late")); },
                             [r = request_of(0, 2, "host-late")] {
                               const Socket listener = Socket::listen(socket_name(r), 2);
                               const Socket guest = listener.accept(r.deadline);
                               Hello hello;
                               std::vector<int> fds;
                               Outcome outcome;
                               outcome.joined =
                                   guest.receive(&hello, sizeof(hello), fds, r.deadline) > 0;
                               const Segment segment = Segment::create(kBytes, 0);
                               std::uint32_t order[496 / 4] = {1};  // Order::Kind::segments
                               (void)guest.send(order, sizeof(order), {segment.fd()});
                               return outcome;
                             }});
  EXPECT_TRUE(outcomes[1].joined);
  expect_error(outcomes[0], "rank 1: rank 0 (process ");
  expect_error(outcomes[0], "went away during set-up of job");
}

// One process, one rank: the second set-up could meet the first one's peers.
TEST(RendezvousTest, TwoSetUpsAtTheSameTimeNeedTwoNames) {
  const JoinRequest request = request_of(1, 2, "same-time", 500ms);
  Outcome first;
  std::thread other([&] { first = join(request); });
  const Outcome second = join(request);
  other.join();
  const bool swapped = std::string(first.error).find("at the same time") != std::string::npos;
  expect_error(swapped ? first : second, "rank 1 sets up two communicators of job");
  expect_error(swapped ? second : first, "rank 0 did not arrive");
  expect_error(join(request_of(1, 2, "same-time", 10ms)), "rank 0 did not arrive");  // forgotten
}

// Another size than was announced: the peer's offsets would lie outside.
TEST(RendezvousTest, ASegmentOfAnotherSizeIsRefused) {
  const auto outcomes = run({[] { return join(request_of(0, 2, "bytes")); },
                             [r = request_of(1, 2, "bytes")] { return join(r, 2 * kBytes); }});
  expect_error(outcomes[0], "segment of rank 1 has 32768 bytes, expected 16384");
  EXPECT_FALSE(outcomes[1].joined);
}

TEST(RendezvousTest, TwoRanksInOneProcessNeedAThreadGroup) {
  Outcome guest;
  std::thread other([&] { guest = join(request_of(1, 2, "threads")); });
  const Outcome host = join(request_of(0, 2, "threads"));
  other.join();
  expect_error(host, "ranks 0 and 1 are in one process: use a ThreadGroup");
  expect_error(guest, "ranks 0 and 1 are in one process");
}

// What rank 0 answers, or -1. Text of a refusal begins at byte 24.
long greet(const JoinRequest& request, const void* hello, std::size_t bytes, char (&answer)[600]) {
  const Socket socket = Socket::connect(socket_name(request), request.deadline);
  const Segment segment = Segment::create(kBytes, 1);
  std::vector<int> fds;
  if (!socket.send(hello, bytes, {segment.fd()})) return -2;
  return socket.receive(answer, sizeof(answer), fds, request.deadline);
}

// Of any version is known: magic, version, rank. What follows may be longer or shorter.
void refuse_version(std::size_t bytes) {
  const std::string job = "wire" + std::to_string(bytes);
  const JoinRequest request = request_of(1, 2, job);
  const auto outcomes =
      run({[&] { return join(request_of(0, 2, job)); },
           [&] {
             const Hello hello{.wire_version = kWireVersion + 1, .pid = getpid()};
             char message[sizeof(Hello) + 32] = {};
             std::memcpy(message, &hello, sizeof(hello));
             char answer[600] = {};
             Outcome outcome;
             if (greet(request, message, bytes, answer) > 24) {
               std::snprintf(outcome.error, sizeof(outcome.error), "%.400s", answer + 24);
             }
             return outcome;
           }});
  const std::string text = "wire version differs: rank 0 has " + std::to_string(kWireVersion) +
                           ", rank 1 has " + std::to_string(kWireVersion + 1);
  expect_error(outcomes[0], text);
  expect_error(outcomes[1], text);
}
TEST(RendezvousTest, OtherWireVersionsAreRefused) { refuse_version(sizeof(Hello)); }
TEST(RendezvousTest, ShorterWireVersionsAreRefused) { refuse_version(16); }
TEST(RendezvousTest, LongerWireVersionsAreRefused) { refuse_version(sizeof(Hello) + 32); }

TEST(RendezvousTest, RanksOutOfRangeAreRefused) {
  for (const int rank : {0, -1, 2}) {
    const std::string job = "range" + std::to_string(rank);
    const auto outcomes = run({[&] { return join(request_of(0, 2, job)); },
                               [&, request = request_of(1, 2, job)] {
                                 Hello hello{.rank = rank, .pid = getpid()};
                                 char answer[600] = {};
                                 (void)greet(request, &hello, sizeof(hello), answer);
                                 return Outcome{};
                               }});
    expect_error(outcomes[0], "rank " + std::to_string(rank) + " joined, expected 1");
  }
}

// Who knows the name but not the language is let go, and the group comes about without it.
TEST(RendezvousTest, StrangersDoNotDisturb) {
  const auto outcomes = run({[] { return join(request_of(0, 2, "strangers")); },
                             [request = request_of(1, 2, "strangers")] {
                               char answer[600] = {};
                               Hello hello{.magic = 7, .pid = getpid()};
                               const long other = greet(request, &hello, sizeof(hello), answer);
                               const long brief = greet(request, "hi", 2, answer);
                               Outcome outcome = join(request);
                               if (other != -1 || brief != -1) outcome.joined = false;
                               return outcome;
                             }});
  EXPECT_TRUE(outcomes[0].joined) << outcomes[0].error;
  EXPECT_TRUE(outcomes[1].joined) << outcomes[1].error;
}

// Ranks as threads.
std::vector<std::string> join_threads(detail::ThreadRendezvous& rendezvous,
                                      const std::vector<JoinRequest>& requests) {
  std::vector<std::string> errors(requests.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    threads.emplace_back([&, i] {
      try {
        auto own = std::make_shared<Segment>(Segment::create(kBytes, requests[i].rank));
        own->data()[kFabricHeaderBytes] = static_cast<std::byte>(requests[i].rank);
        const Segments segments = rendezvous.join(requests[i], own).segments;
        for (std::size_t r = 0; r < segments.size(); ++r) {
          if (segments[r]->data()[kFabricHeaderBytes] != static_cast<std::byte>(r))
            errors[i] = "wrong segment";
        }
      } catch (const Error& error) {
        errors[i] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

TEST(ThreadRendezvousTest, JoinsTimeAfterTime) {
  detail::ThreadRendezvous rendezvous(3);
  for (int round = 0; round < 20; ++round) {
    const auto errors = join_threads(
        rendezvous, {request_of(2, 3, "t"), request_of(0, 3, "t"), request_of(1, 3, "t")});
    for (const std::string& error : errors) EXPECT_EQ(error, "");
  }
}

TEST(ThreadRendezvousTest, ADifferenceIsNamedToAllAndForgotten) {
  detail::ThreadRendezvous rendezvous(2);
  JoinRequest other = request_of(1, 2, "t");
  other.fields[0].value = 9;
  for (const std::string& error : join_threads(rendezvous, {request_of(0, 2, "t"), other})) {
    EXPECT_EQ(error, "num_experts differs: rank 0 has 8, rank 1 has 9");
  }
  for (const std::string& error :
       join_threads(rendezvous, {request_of(0, 2, "t"), request_of(1, 2, "t")})) {
    EXPECT_EQ(error, "");
  }
}

// Those who wait hear of it at once, those who come later too, and then it is forgotten.
TEST(ThreadRendezvousTest, ARankThatDeclinesIsNamedToAll) {
  detail::ThreadRendezvous rendezvous(3);
  std::thread waiting([&] {
    EXPECT_EQ(join_threads(rendezvous, {request_of(0, 3, "t")})[0], "rank 1 cannot join: ill");
  });
  std::this_thread::sleep_for(20ms);
  rendezvous.decline(request_of(1, 3, "t"), "ill");
  waiting.join();
  EXPECT_EQ(join_threads(rendezvous, {request_of(2, 3, "t")})[0], "rank 1 cannot join: ill");
  const auto later = join_threads(
      rendezvous, {request_of(0, 3, "t"), request_of(1, 3, "t"), request_of(2, 3, "t")});
  for (const std::string& error : later) EXPECT_EQ(error, "");
}

TEST(ThreadRendezvousTest, MissingRanksAreNamedAndMayComeLater) {
  detail::ThreadRendezvous rendezvous(3);
  const auto errors = join_threads(rendezvous, {request_of(1, 3, "t", 50ms)});
  EXPECT_EQ(errors[0], "timeout: rank 0, 2 did not arrive in the ThreadGroup of 3 ranks");
  // Those who came do not blame one another.
  for (const std::string& error :
       join_threads(rendezvous, {request_of(1, 3, "t", 500ms), request_of(2, 3, "t")})) {
    EXPECT_EQ(error, "timeout: rank 0 did not arrive in the ThreadGroup of 3 ranks");
  }
  const auto later = join_threads(
      rendezvous, {request_of(0, 3, "t"), request_of(1, 3, "t"), request_of(2, 3, "t")});
  for (const std::string& error : later) EXPECT_EQ(error, "");
}

TEST(ThreadRendezvousTest, TheSizeIsThatOfTheGroup) {
  detail::ThreadRendezvous rendezvous(2);
  EXPECT_EQ(join_threads(rendezvous, {request_of(0, 3, "t")})[0],
            "size is 3, expected 2 as in the ThreadGroup");
}

TEST(ThreadRendezvousTest, ARankMayJoinOnce) {
  detail::ThreadRendezvous rendezvous(2);
  std::atomic<int> refused = 0;
  const auto join_somehow = [&] {
    for (int rank = 1; rank >= 0; --rank) {
      try {
        (void)rendezvous.join(request_of(rank, 2, "t"),
                              std::make_shared<Segment>(Segment::create(kBytes, rank)));
        return;
      } catch (const Error& error) {
        EXPECT_STREQ(error.what(), "rank 1 joined twice, expected each of 0..1 once");
        ++refused;  // and comes again as rank 0
      }
    }
  };
  std::thread other(join_somehow);
  join_somehow();
  other.join();
  EXPECT_EQ(refused, 1);
}

}  // namespace
}  // namespace ubep
