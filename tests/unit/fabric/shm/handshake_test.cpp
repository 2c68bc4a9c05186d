// Job keys: who does not know the key gets no descriptor, and does not disturb those who do.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <string>
#include <thread>

#include "fabric/shm/messages.hpp"
#include "support/ranks.hpp"
#include "ubep/status.hpp"
#include "ubep/version.hpp"

namespace ubep {
namespace {

using namespace std::chrono_literals;
using test::RankKind;
using test::run_ranks;

constexpr std::uint64_t kBytes = 16384;

JoinRequest request_of(int rank, const std::string& test, const std::string& key,
                       std::chrono::milliseconds patience = 20s) {
  JoinRequest request{.rank = rank,
                      .size = 2,
                      .job = "handshake-test-" + std::to_string(getppid()) + "-" + test,
                      .deadline = std::chrono::steady_clock::now() + patience,
                      .fields = {{{"num_experts", 8}}},
                      .segment_bytes = {kBytes, kBytes},
                      .inbox_bytes = {},
                      .members = {},
                      .key = JobKey(key)};
  return with_members(request);
}

std::string join(const JoinRequest& request) {
  try {
    auto own = std::make_shared<Segment>(Segment::create(kBytes, request.rank));
    return join_processes(request, own).segments.size() == 2 ? "joined" : "too few";
  } catch (const Error& error) {
    return error.what();
  }
}

Hello hello_of(const JoinRequest& request, bool keyed) {
  Hello hello = {};
  hello.magic = kMagic;
  hello.wire_version = kWireVersion;
  hello.rank = 1;
  hello.size = 2;
  hello.pid = getpid();
  hello.keyed = keyed ? 1 : 0;
  hello.fields[0] = request.fields[0].value;
  return hello;
}

// What a stranger at the door gets: the last message before it is shut, and how many descriptors.
struct Answer {
  Order order = {};
  std::size_t files = 0;
};

Answer knock(const JoinRequest& request, const Hello& hello, const Response* response) {
  Answer answer;
  const Socket socket = Socket::connect(socket_name(request), request.deadline);
  EXPECT_TRUE(socket.send(&hello, sizeof(hello)));
  std::vector<int> fds;
  for (;;) {
    Order order = {};
    if (socket.receive(&order, sizeof(order), fds, request.deadline) <= 0) break;
    answer.order = order;
    if (order.kind == Order::Kind::refuse) break;
    if (order.kind == Order::Kind::challenge && response != nullptr) {
      (void)socket.send(response, sizeof(*response));
    } else {
      break;
    }
  }
  answer.files = fds.size();
  for (int fd : fds) ::close(fd);
  return answer;
}

class HandshakeTest : public testing::Test {
 protected:
  void SetUp() override {
    try {
      (void)JobKey("k");
    } catch (const Error&) {
      GTEST_SKIP() << "built without libsodium";
    }
  }
};

TEST_F(HandshakeTest, TheSameKeyJoins) {
  run_ranks(RankKind::processes, 2, [](const Bootstrap& b) {
    EXPECT_EQ(join(request_of(b.rank, "same", "a secret")), "joined");
  });
}

TEST_F(HandshakeTest, LongKeysJoin) {
  run_ranks(RankKind::processes, 2, [](const Bootstrap& b) {
    EXPECT_EQ(join(request_of(b.rank, "long", std::string(100'000, 'k'))), "joined");
  });
}

TEST_F(HandshakeTest, AnotherKeyIsRefusedAtOnce) {
  run_ranks(RankKind::processes, 2, [](const Bootstrap& b) {
    const auto begin = std::chrono::steady_clock::now();
    const JoinRequest request = request_of(b.rank, "other", b.rank == 0 ? "one" : "two", 2s);
    const std::string error = join(request);
    const bool at_once = std::chrono::steady_clock::now() - begin < 1s;
    if (b.rank == 1) {
      EXPECT_TRUE(at_once);
      EXPECT_NE(error.find("has another job key"), std::string::npos) << error;
    } else {
      EXPECT_NE(error.find("rank 1 did not arrive"), std::string::npos) << error;
      EXPECT_NE(error.find("1 that do not know the job key were refused"), std::string::npos)
          << error;
    }
  });
}

TEST_F(HandshakeTest, NoKeyIsRefused) {
  run_ranks(RankKind::processes, 2, [](const Bootstrap& b) {
    const std::string error = join(request_of(b.rank, "none", b.rank == 0 ? "one" : "", 2s));
    if (b.rank == 1) {
      EXPECT_NE(error.find("rank 0 has a job key, rank 1 gave none"), std::string::npos) << error;
    }
  });
}

TEST_F(HandshakeTest, AKeyThatOnlyAGuestHasIsToldToBoth) {
  run_ranks(RankKind::processes, 2, [](const Bootstrap& b) {
    const std::string error = join(request_of(b.rank, "guest's", b.rank == 1 ? "one" : ""));
    EXPECT_NE(error.find("rank 1 has a job key, rank 0 has none"), std::string::npos) << error;
  });
}

// Strangers come first: the rank that is waited for joins all the same.
TEST_F(HandshakeTest, StrangersDoNotDisturb) {
  run_ranks(RankKind::processes, 2, [](const Bootstrap& b) {
    const JoinRequest request = request_of(b.rank, "strangers", "a secret");
    if (b.rank == 1) {
      const Answer bare = knock(request, hello_of(request, false), nullptr);
      EXPECT_EQ(bare.order.kind, Order::Kind::refuse);
      const Response guess{kMagic, {}};
      const Answer wrong = knock(request, hello_of(request, true), &guess);
      EXPECT_EQ(wrong.order.kind, Order::Kind::refuse);
      EXPECT_STREQ(wrong.order.text, "another job key");
      EXPECT_EQ(bare.files + wrong.files, 0U);
      const Hello other_version = [&] {
        Hello hello = hello_of(request, true);
        hello.wire_version = kWireVersion + 1;
        return hello;
      }();
      (void)knock(request, other_version, nullptr);
    }
    EXPECT_EQ(join(request), "joined");
  });
}

// A proof that was overheard is worth nothing to somebody else, or in the next meeting.
TEST_F(HandshakeTest, ProofsCannotBeReplayed) {
  run_ranks(RankKind::processes, 2, [](const Bootstrap& b) {
    const JoinRequest request = request_of(b.rank, "replay", "a secret");
    if (b.rank == 1) {
      const Hello hello = hello_of(request, true);
      // Of a meeting with other random numbers.
      const JobKey::Proof old = request.key.prove({.side = JobKey::Side::guest,
                                                   .meeting = "2|0, 1|1|" + request.job,
                                                   .guest = hello.nonce,
                                                   .host = fresh_nonce()});
      const Response replayed{kMagic, old};
      EXPECT_EQ(knock(request, hello, &replayed).order.kind, Order::Kind::refuse);
    }
    EXPECT_EQ(join(request), "joined");
  });
}

// Somebody holds the socket who does not know the key: the guest says so and hands nothing over.
TEST_F(HandshakeTest, AHostWithoutTheKeyGetsNoDescriptors) {
  run_ranks(RankKind::processes, 2, [](const Bootstrap& b) {
    const JoinRequest request = request_of(b.rank, "impostor", "a secret", 5s);
    if (b.rank == 1) {
      const std::string error = join(request);
      EXPECT_NE(error.find("has another job key"), std::string::npos) << error;
      return;
    }
    const Socket listener = Socket::listen(socket_name(request), 4);
    const Socket guest = listener.accept(request.deadline);
    Hello hello = {};
    std::vector<int> fds;
    ASSERT_EQ(guest.receive(&hello, sizeof(hello), fds, request.deadline),
              static_cast<long>(sizeof(hello)));
    Order order = {};
    order.kind = Order::Kind::challenge;
    EXPECT_TRUE(guest.send(&order, sizeof(order)));
    Response response = {};
    EXPECT_NE(guest.receive(&response, sizeof(response), fds, request.deadline),
              static_cast<long>(sizeof(response)));
    EXPECT_TRUE(fds.empty());
  });
}

TEST_F(HandshakeTest, ProofsDependOnAllOfTheClaim) {
  const JobKey key("a secret");
  const JobKey::Claim claim{
      .side = JobKey::Side::guest, .meeting = "m", .guest = fresh_nonce(), .host = fresh_nonce()};
  const JobKey::Proof proof = key.prove(claim);
  EXPECT_TRUE(key.verify(claim, proof));
  EXPECT_FALSE(JobKey("a secret ").verify(claim, proof));
  JobKey::Claim other = claim;
  other.side = JobKey::Side::host;
  EXPECT_FALSE(key.verify(other, proof));
  other = claim;
  other.meeting = "n";
  EXPECT_FALSE(key.verify(other, proof));
  other = claim;
  other.guest = fresh_nonce();
  EXPECT_FALSE(key.verify(other, proof));
  other = claim;
  other.host = fresh_nonce();
  EXPECT_FALSE(key.verify(other, proof));
  EXPECT_FALSE(JobKey("").given());
  EXPECT_TRUE(key.given());
}

}  // namespace
}  // namespace ubep
