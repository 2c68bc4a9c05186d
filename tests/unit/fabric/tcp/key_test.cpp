// Job keys over TCP: who does not know the key stays outside, and nobody on the way can alter or
// replay what is said.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "fabric/tcp/meeting.hpp"
#include "fabric/tcp/stream.hpp"
#include "unit/fabric/tcp/tcp_ranks.hpp"

namespace ubep::test {
namespace {

class TcpKeyTest : public testing::Test {
 protected:
  void SetUp() override {
    try {
      (void)JobKey("k");
    } catch (const Error&) {
      GTEST_SKIP() << "built without libsodium";
    }
  }
};

// Hands on what two sides say, but for one byte.
class Proxy {
 public:
  struct Flip {
    bool of_guest = false;
    std::size_t at = 0;
  };
  Proxy(int port, Flip flip) : to_(port), flip_(flip), thread_([this] { run(); }) {}
  Proxy(const Proxy&) = delete;
  Proxy& operator=(const Proxy&) = delete;
  ~Proxy() { thread_.join(); }
  int port() const { return listener_.port(); }
  std::size_t from_guest() const { return count_[0]; }
  std::size_t from_host() const { return count_[1]; }

 private:
  // False at the end.
  bool pass(const RawTcp& from, const RawTcp& to, std::size_t side) {
    std::string text = from.receive();
    const bool is_it = flip_.of_guest == (side == 0) && flip_.at >= count_[side] &&
                       flip_.at < count_[side] + text.size();
    if (is_it) text[flip_.at - count_[side]] ^= 0x04;
    count_[side] += text.size();
    to.send(text);
    return !text.empty();
  }

  void run() {
    const RawTcp guest = listener_.accept();
    const RawTcp host = RawTcp::connect(to_);
    for (;;) {
      pollfd entries[2] = {{guest.fd(), POLLIN, 0}, {host.fd(), POLLIN, 0}};
      if (::poll(entries, 2, 5000) <= 0) return;
      if (entries[0].revents != 0 && !pass(guest, host, 0)) return;
      if (entries[1].revents != 0 && !pass(host, guest, 1)) return;
    }
  }

  RawListener listener_;
  int to_;
  Flip flip_;
  std::size_t count_[2] = {0, 0};
  std::thread thread_;
};

void meet(const JoinRequest& request, const TcpPlace& place) {
  TcpMeeting meeting(request, place);
  EXPECT_EQ(meeting.exchange("a message of rank " + std::to_string(request.rank))[1],
            "a message of rank 1");
  EXPECT_EQ(meeting.exchange("")[0], "");
}

TEST_F(TcpKeyTest, TheSameKeyJoins) {
  for (const std::string& key : {std::string("a secret"), std::string(100'000, 'k')}) {
    const TcpCase here{.size = 4, .key = key};
    expect_ok(run_tcp(4, [&](int rank) {
      TcpMeeting meeting(here.request(rank), here.place());
      for (int round = 0; round < 3; ++round) {
        const auto messages = meeting.exchange(std::to_string(10 * round + rank));
        for (int r = 0; r < 4; ++r) {
          EXPECT_EQ(messages[static_cast<std::size_t>(r)], std::to_string(10 * round + r));
        }
      }
      EXPECT_EQ(meeting.exchange(std::string(kMostTcpMessage, 'x'))[3].size(), kMostTcpMessage);
    }));
  }
}

TEST_F(TcpKeyTest, AnotherKeyIsRefusedAtOnce) {
  const TcpCase here{.size = 3, .key = "a secret", .patience = 1000ms};
  const auto ends = run_tcp(3, [&](int rank) {
    TcpCase mine = here;
    if (rank == 2) mine.key = "another";
    (void)TcpMeeting(mine.request(rank), mine.place());
  });
  expect_text(ends[2], "has another job key");
  EXPECT_LT(ends[2].after, 900ms);
  for (const int r : {0, 1}) {
    const TcpEnd& end = ends[static_cast<std::size_t>(r)];
    expect_text(end, "rank 2 did not arrive");
    expect_text(end, "1 that do not know the job key were refused");
  }
}

TEST_F(TcpKeyTest, NoKeyIsRefusedAtOnce) {
  const TcpCase here{.key = "a secret", .patience = 1000ms};
  const auto ends = run_tcp(2, [&](int rank) {
    TcpCase mine = here;
    if (rank == 1) mine.key = "";
    (void)TcpMeeting(mine.request(rank), mine.place());
  });
  expect_text(ends[0], "1 that do not know the job key were refused");
  expect_text(ends[1], "rank 0 has a job key, rank 1 gave none");
  EXPECT_LT(ends[1].after, 900ms);
}

TEST_F(TcpKeyTest, AKeyThatOnlyAGuestHasIsToldToBoth) {
  const TcpCase here;
  const auto ends = run_tcp(2, [&](int rank) {
    TcpCase mine = here;
    if (rank == 1) mine.key = "a secret";
    (void)TcpMeeting(mine.request(rank), mine.place());
  });
  for (const TcpEnd& end : ends) expect_text(end, "rank 1 has a job key, rank 0 has none");
}

TEST_F(TcpKeyTest, WhoDoesNotKnowTheKeyCannotDisturb) {
  const TcpCase here{.key = "a secret"};
  TcpCase bare = here;
  bare.key = "";
  const auto ends = run_some({0, 1}, [&](int rank) {
    if (rank == 1) {
      TcpMeeting::decline(bare.request(1), bare.place(), "so says somebody");
      const RawTcp guesses = RawTcp::connect(here.port);
      const std::string hello = encode_hello(with_members(here.request(1)), fresh_nonce(), {});
      guesses.send(encode_header(TcpKind::hello, hello.size()) + hello);
      EXPECT_FALSE(guesses.receive().empty());
      guesses.send(encode_header(TcpKind::proof, 32) + std::string(32, 'x'));
      EXPECT_NE(guesses.receive_all().find("another job key"), std::string::npos);
      std::string other_version = hello;
      other_version[8] = 99;
      const RawTcp newer = RawTcp::connect(here.port);
      newer.send(encode_header(TcpKind::hello, hello.size()) + other_version);
      EXPECT_NE(newer.receive_all().find("wire version differs"), std::string::npos);
    }
    meet(here.request(rank), here.place());
  });
  expect_ok(ends);
}

TEST_F(TcpKeyTest, AHostThatDoesNotKnowTheKeyIsToldNothing) {
  const RawListener impostor;
  std::thread host([&] {
    const RawTcp guest = impostor.accept();
    (void)guest.receive_frame();
    guest.send(encode_header(TcpKind::challenge, 64) + std::string(64, 'x'));
    EXPECT_EQ(guest.receive_all(), "");
  });
  const TcpCase here{.port = impostor.port(), .key = "a secret"};
  const auto ends =
      run_some({1}, [&](int rank) { (void)TcpMeeting(here.request(rank), here.place()); });
  host.join();
  expect_text(ends[0], "has another job key");
}

TEST_F(TcpKeyTest, AHostWithoutAKeyIsNotJoined) {
  const RawListener impostor;
  std::thread host([&] {
    const RawTcp guest = impostor.accept();
    (void)guest.receive_frame();
    guest.send(encode_header(TcpKind::accepted, 0));
    (void)guest.receive_frame();
  });
  const TcpCase here{.port = impostor.port(), .key = "a secret"};
  const auto ends =
      run_some({1}, [&](int rank) { (void)TcpMeeting(here.request(rank), here.place()); });
  host.join();
  expect_text(ends[0], "has no job key");
}

TEST_F(TcpKeyTest, WhoKnowsTheKeyIsHeardWhenItCannotJoin) {
  for (const int who : {0, 1}) {
    const TcpCase here{.size = 2, .key = "a secret"};
    const auto ends = run_tcp(2, [&](int rank) {
      if (rank == who) {
        TcpMeeting::decline(here.request(rank), here.place(), "no memory");
      } else {
        (void)TcpMeeting(here.request(rank), here.place());
      }
    });
    expect_text(ends[static_cast<std::size_t>(1 - who)], "cannot join: no memory");
  }
}

// One byte in five of what either side says, each in a set-up of its own.
TEST_F(TcpKeyTest, WhatIsAlteredOnTheWayIsFound) {
  std::size_t said[2] = {0, 0};
  {
    const TcpCase here{.key = "a secret"};
    Proxy proxy(here.port, {.of_guest = true, .at = 1'000'000});
    expect_ok(run_tcp(2, [&](int rank) {
      meet(here.request(rank), {"127.0.0.1", rank == 0 ? here.port : proxy.port()});
    }));
    said[0] = proxy.from_guest();
    said[1] = proxy.from_host();
  }
  ASSERT_GT(said[0], 200U);
  ASSERT_GT(said[1], 200U);
  constexpr std::size_t kStep = 5;
  constexpr std::size_t kAtOnce = 16;
  std::vector<Proxy::Flip> flips;
  for (const std::size_t side : {0U, 1U}) {
    for (std::size_t at = 0; at < said[side]; at += kStep) {
      flips.push_back({.of_guest = side == 0, .at = at});
    }
  }
  std::atomic<std::size_t> next{0};
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < kAtOnce; ++t) {
    threads.emplace_back([&] {
      for (std::size_t i = next++; i < flips.size(); i = next++) {
        const TcpCase here{.key = "a secret", .patience = 300ms};
        Proxy proxy(here.port, flips[i]);
        const auto ends = run_tcp(2, [&](int rank) {
          meet(here.request(rank), {"127.0.0.1", rank == 0 ? here.port : proxy.port()});
        });
        EXPECT_FALSE(ends[0].text == "ok" && ends[1].text == "ok")
            << (flips[i].of_guest ? "guest" : "host") << "'s byte " << flips[i].at;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// As above, once both have proved themselves: then it is said what happened.
TEST_F(TcpKeyTest, WhatIsAlteredLaterIsNamed) {
  const TcpCase here{.key = "a secret"};
  const std::size_t hello =
      kTcpHeaderBytes + encode_hello(with_members(here.request(1)), fresh_nonce(), {}).size();
  const std::size_t proof = kTcpHeaderBytes + JobKey::kBytes;
  Proxy proxy(here.port, {.of_guest = true, .at = hello + proof + 50});
  const auto ends = run_tcp(2, [&](int rank) {
    meet(here.request(rank), {"127.0.0.1", rank == 0 ? here.port : proxy.port()});
  });
  for (const TcpEnd& end : ends) {
    expect_text(end, "was altered on its way");
    EXPECT_LT(end.after, 3s);
  }
}

TEST_F(TcpKeyTest, StampsAndSessionsAreTellingApart) {
  const JobKey key("a secret");
  const JobKey::Claim claim{
      .side = JobKey::Side::guest, .meeting = "m", .guest = fresh_nonce(), .host = fresh_nonce()};
  JobKey::Claim by_host = claim;
  by_host.side = JobKey::Side::host;
  const JobKey session = key.session(claim);
  const JobKey::Stamp stamp{.from = JobKey::Side::guest, .guest = 1, .number = 5};
  const JobKey::Proof proof = session.sign(stamp, "said");
  EXPECT_TRUE(key.session(by_host).verify(stamp, "said", proof));  // the same for both sides
  EXPECT_FALSE(session.verify(stamp, "saie", proof));
  EXPECT_FALSE(session.verify({JobKey::Side::host, 1, 5}, "said", proof));
  EXPECT_FALSE(session.verify({JobKey::Side::guest, 2, 5}, "said", proof));
  EXPECT_FALSE(session.verify({JobKey::Side::guest, 1, 6}, "said", proof));
  JobKey::Claim other = claim;
  other.host = fresh_nonce();
  EXPECT_FALSE(key.session(other).verify(stamp, "said", proof));
  EXPECT_FALSE(key.verify(stamp, "said", proof));
}

}  // namespace
}  // namespace ubep::test
