// Ranks meet over TCP: who is there, what differs, and what all hear of whatever goes wrong.
#include "fabric/tcp/meeting.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fabric/tcp/stream.hpp"
#include "ubep/version.hpp"
#include "unit/fabric/tcp/tcp_ranks.hpp"

namespace ubep::test {
namespace {

std::string message_of(int rank, std::size_t bytes) {
  return std::string(bytes, static_cast<char>('a' + rank));
}

TEST(TcpMeetingTest, EveryRankGetsEveryMessage) {
  for (const int size : {1, 2, 5}) {
    const TcpCase here{.size = size};
    expect_ok(run_tcp(size, [&](int rank) {
      TcpMeeting meeting(here.request(rank), here.place());
      // Of no bytes, of one size, and each of its own; the last ranks have most.
      for (const std::size_t step : {0U, 1U, 1000U, 200'000U}) {
        const auto bytes = [&](int r) { return step * static_cast<std::size_t>(r + 1); };
        const auto messages = meeting.exchange(message_of(rank, bytes(rank)));
        ASSERT_EQ(messages.size(), static_cast<std::size_t>(size));
        for (int r = 0; r < size; ++r) {
          EXPECT_EQ(messages[static_cast<std::size_t>(r)], message_of(r, bytes(r)));
        }
      }
    }));
  }
}

TEST(TcpMeetingTest, MessagesHaveUpToOneMegabyte) {
  const TcpCase here{.size = 3};
  expect_ok(run_tcp(3, [&](int rank) {
    TcpMeeting meeting(here.request(rank), here.place());
    const std::size_t bytes = rank == 1 ? 0 : kMostTcpMessage;
    const auto messages = meeting.exchange(message_of(rank, bytes));
    EXPECT_EQ(messages[0], message_of(0, kMostTcpMessage));
    EXPECT_EQ(messages[1], "");
    EXPECT_EQ(messages[2], message_of(2, kMostTcpMessage));
    EXPECT_THROW((void)meeting.exchange(message_of(rank, kMostTcpMessage + 1)), Error);
    EXPECT_EQ(meeting.exchange("x")[0], "x");  // it was told to nobody
  }));
}

TEST(TcpMeetingTest, OneMemberNeedsNoSocket) {
  const TcpCase here{.size = 3, .port = 70'000, .address = "no such host", .members = {1}};
  TcpMeeting meeting(here.request(1), here.place());
  EXPECT_EQ(meeting.exchange("x"), (std::vector<std::string>{"", "x", ""}));
  TcpMeeting::decline(here.request(1), here.place(), "why");
}

TEST(TcpMeetingTest, MeetsOverIpv6AndByName) {
  for (const char* address : {"::1", "localhost"}) {
    const TcpCase here{.address = address};
    if (here.address == "::1") {
      const int fd = ::socket(AF_INET6, SOCK_STREAM, 0);
      sockaddr_in6 at = {};
      at.sin6_family = AF_INET6;
      at.sin6_addr = in6addr_loopback;
      const bool has_ipv6 = ::bind(fd, reinterpret_cast<sockaddr*>(&at), sizeof(at)) == 0;
      ::close(fd);
      if (!has_ipv6) continue;
    }
    expect_ok(run_tcp(2, [&](int rank) {
      TcpMeeting meeting(here.request(rank), here.place());
      EXPECT_EQ(meeting.exchange(std::to_string(rank)), (std::vector<std::string>{"0", "1"}));
    }));
  }
}

TEST(TcpMeetingTest, AFewRanksMayMeet) {
  const TcpCase here{.size = 5, .members = {1, 4}};
  expect_ok(run_some({1, 4}, [&](int rank) {
    TcpMeeting meeting(here.request(rank), here.place());
    EXPECT_EQ(meeting.exchange(std::to_string(rank)),
              (std::vector<std::string>{"", "1", "", "", "4"}));
  }));
}

TEST(TcpMeetingTest, OneAfterTheOtherOnOnePort) {
  const TcpCase here{.size = 3};
  expect_ok(run_tcp(3, [&](int rank) {
    std::optional<TcpMeeting> before;  // still there while the next ones meet
    for (int round = 0; round < 8; ++round) {
      const std::string mine = std::to_string(round * 10 + rank);
      if (round % 2 == 0) {
        before.emplace(here.request(rank), here.place());
        EXPECT_EQ(before->exchange(mine)[static_cast<std::size_t>(rank)], mine);
      } else {
        TcpMeeting meeting(here.request(rank), here.place());
        EXPECT_EQ(meeting.exchange(mine)[static_cast<std::size_t>(rank)], mine);
        EXPECT_EQ(before->exchange("again")[0], "again");
      }
    }
  }));
}

// Rank 2 comes at once for the second meeting, while the first one is under way.
TEST(TcpMeetingTest, WhoComesForAnotherSetOfMembersWaitsForIt) {
  const TcpCase first{.size = 3, .members = {0, 1}};
  TcpCase second = first;
  second.members = {0, 2};
  expect_ok(run_tcp(3, [&](int rank) {
    if (rank == 1) std::this_thread::sleep_for(150ms);
    if (rank != 2) {
      EXPECT_EQ(TcpMeeting(first.request(rank), first.place()).exchange("1")[1], "1");
    }
    if (rank == 1) return;
    EXPECT_EQ(TcpMeeting(second.request(rank), second.place()).exchange("2")[2], "2");
  }));
}

TEST(TcpMeetingTest, OtherMembersAreNamedToBoth) {
  TcpCase here{.size = 3, .patience = 600ms};
  const auto ends = run_some({0, 1}, [&](int rank) {
    TcpCase mine = here;
    mine.members = rank == 0 ? std::vector<int>{0, 1} : std::vector<int>{0, 1, 2};
    (void)TcpMeeting(mine.request(rank), mine.place());
  });
  expect_text(ends[0], "rank 1 did not arrive");
  expect_text(ends[0], "has members 0, 1, 2");
  expect_text(ends[1], "rank 0 has members 0, 1, rank 1 has 0, 1, 2");
}

TEST(TcpMeetingTest, ADifferenceIsNamedToAll) {
  const TcpCase here{.size = 3};
  const auto ends = run_tcp(3, [&](int rank) {
    JoinRequest request = here.request(rank);
    if (rank == 2) request.fields[1].value = 3;
    (void)TcpMeeting(request, here.place());
  });
  for (const TcpEnd& end : ends) {
    expect_text(end, "slots differs: rank 0 has 2, rank 2 has 3");
    EXPECT_LT(end.after, 5s);
  }
}

TEST(TcpMeetingTest, SizesMustBeAlike) {
  const TcpCase here{.size = 2};
  const TcpCase other{.size = 3, .port = here.port};
  const auto ends = run_tcp(2, [&](int rank) {
    (void)TcpMeeting((rank == 0 ? here : other).request(rank), here.place());
  });
  for (const TcpEnd& end : ends) expect_text(end, "size differs: rank 0 has 2, rank 1 has 3");
}

TEST(TcpMeetingTest, ARankMayJoinOnce) {
  const TcpCase here{.size = 3};
  const auto ends =
      run_some({0, 1, 1}, [&](int rank) { (void)TcpMeeting(here.request(rank), here.place()); });
  for (const TcpEnd& end : ends) expect_text(end, "rank 1 joined twice");
}

TEST(TcpMeetingTest, WhoIsMissingIsNamed) {
  const TcpCase here{.size = 4, .patience = 300ms};
  const auto ends =
      run_some({0, 2}, [&](int rank) { (void)TcpMeeting(here.request(rank), here.place()); });
  for (const TcpEnd& end : ends) {
    expect_text(end, "rank 1, 3 did not arrive for job 'tcp-test' of 4 ranks");
    EXPECT_LT(end.after, 3s);
  }
}

TEST(TcpMeetingTest, AMissingHostIsNamed) {
  const TcpCase here{.patience = 200ms};
  const auto ends =
      run_some({1}, [&](int rank) { (void)TcpMeeting(here.request(rank), here.place()); });
  expect_text(ends[0], "rank 0 did not arrive for job 'tcp-test' of 2 ranks (127.0.0.1:" +
                           std::to_string(here.port) + ")");
  expect_text(ends[0], "Connection refused");
}

TEST(TcpMeetingTest, AHostThatIsNotThereIsNamed) {
  const TcpCase here{.address = "no-such-host.invalid", .patience = 200ms};
  const auto ends =
      run_some({1}, [&](int rank) { (void)TcpMeeting(here.request(rank), here.place()); });
  expect_text(ends[0], "the host 'no-such-host.invalid' (Bootstrap::address, UBEP_ADDRESS)");
}

TEST(TcpMeetingTest, APortInUseIsNamed) {
  const RawListener other;
  const TcpCase here{.port = other.port(), .patience = 200ms};
  const auto ends =
      run_some({0}, [&](int rank) { (void)TcpMeeting(here.request(rank), here.place()); });
  expect_text(ends[0], "cannot listen on port " + std::to_string(here.port));
  expect_text(ends[0], "UBEP_PORT");
}

TEST(TcpMeetingTest, SomethingElseOnThePortIsNamed) {
  const RawListener other;
  std::thread web([&] {
    const RawTcp guest = other.accept();
    (void)guest.receive_frame();
    guest.send("HTTP/1.1 400 Bad Request\r\n\r\n");
    (void)guest.receive_frame();
  });
  const TcpCase here{.port = other.port()};
  const auto ends =
      run_some({1}, [&](int rank) { (void)TcpMeeting(here.request(rank), here.place()); });
  web.join();
  expect_text(ends[0], "listens something that is no rank of UBEP");
  EXPECT_LT(ends[0].after, 2s);
}

// They come first and stay: the rank that is waited for joins all the same, and at once.
TEST(TcpMeetingTest, StrangersDoNotDisturb) {
  const TcpCase here;
  const JoinRequest request = with_members(here.request(1));
  std::string hello = encode_hello(request, fresh_nonce(), {});
  const auto ends = run_tcp(2, [&](int rank) {
    std::vector<RawTcp> strangers;
    if (rank == 1) {
      for (int i = 0; i < 6; ++i) strangers.push_back(RawTcp::connect(here.port));
      strangers[1].send("GET / HTTP/1.1\r\n\r\n");
      strangers[2].send(encode_header(TcpKind::hello, 0xFFFFFFFF));
      strangers[3].send(encode_header(TcpKind::hello, 8) + "nonsense");
      strangers[4].send(encode_header(TcpKind::hello, hello.size()) + hello.substr(0, 50));
      strangers[5].close();
      EXPECT_EQ(strangers[1].receive(), "");
      EXPECT_EQ(strangers[3].receive(), "");
    }
    const auto begin = std::chrono::steady_clock::now();
    TcpMeeting meeting(here.request(rank), here.place());
    EXPECT_TRUE(rank == 0 || std::chrono::steady_clock::now() - begin < 1s);
    EXPECT_EQ(meeting.exchange("x")[1], "x");
  });
  expect_ok(ends);
}

// Any hello that is cut or has a byte of its lengths changed: never more than a refusal.
TEST(TcpMeetingTest, BrokenHellosAreNoHellos) {
  const JoinRequest request = with_members(TcpCase().request(1));
  const std::string hello = encode_hello(request, fresh_nonce(), "why");
  ASSERT_TRUE(decode_hello(hello));
  EXPECT_EQ(decode_hello(hello)->regret, "why");
  EXPECT_EQ(decode_hello(hello)->members, request.members);
  for (std::size_t i = 0; i < hello.size(); ++i) EXPECT_FALSE(decode_hello(hello.substr(0, i)));
  EXPECT_FALSE(decode_hello(hello + "x"));
  const std::string results = encode_results({0, 1}, {"a", "bcd"});
  ASSERT_TRUE(decode_results(results, request));
  EXPECT_EQ((*decode_results(results, request))[1], "bcd");
  for (std::size_t i = 0; i < results.size(); ++i) {
    EXPECT_FALSE(decode_results(results.substr(0, i), request));
    std::string other = results;
    other[i] = static_cast<char>(0xFF);
    (void)decode_results(other, request);
  }
}

TEST(TcpMeetingTest, AnotherJobIsToldSoAndDisturbsNobody) {
  const TcpCase here;
  TcpCase other = here;
  other.job = "another";
  other.patience = 500ms;
  const auto ends = run_some({0, 1, 2}, [&](int who) {
    if (who == 2) {
      (void)TcpMeeting(other.request(1), other.place());
      return;
    }
    if (who == 1) std::this_thread::sleep_for(700ms);
    EXPECT_EQ(TcpMeeting(here.request(who), here.place()).exchange("x")[1], "x");
  });
  EXPECT_EQ(ends[0].text, "ok");
  EXPECT_EQ(ends[1].text, "ok");
  expect_text(ends[2], "another job meets there (Bootstrap::port, UBEP_PORT)");
}

TEST(TcpMeetingTest, AnotherVersionOfTheJobIsNamedToBoth) {
  const TcpCase here;
  std::string hello = encode_hello(with_members(here.request(1)), fresh_nonce(), {});
  hello[8] = static_cast<char>(kWireVersion + 1);
  std::string answer;
  const auto ends = run_tcp(2, [&](int rank) {
    if (rank == 0) {
      (void)TcpMeeting(here.request(0), here.place());
      return;
    }
    const RawTcp guest = RawTcp::connect(here.port);
    guest.send(encode_header(TcpKind::hello, hello.size()) + hello);
    answer = guest.receive_all();
  });
  expect_text(ends[0], "wire version differs: rank 0 has " + std::to_string(kWireVersion) +
                           ", rank 1 has " + std::to_string(kWireVersion + 1));
  EXPECT_NE(answer.find("wire version differs"), std::string::npos);
}

TEST(TcpMeetingTest, WhoCannotBeginIsHeard) {
  for (const int who : {0, 2}) {
    const TcpCase here{.size = 3};
    const auto ends = run_tcp(3, [&](int rank) {
      if (rank == who) {
        JoinRequest bare = here.request(rank);
        bare.fields = {};
        TcpMeeting::decline(bare, here.place(), "no memory");
      } else {
        (void)TcpMeeting(here.request(rank), here.place());
      }
    });
    for (int r = 0; r < 3; ++r) {
      const TcpEnd& end = ends[static_cast<std::size_t>(r)];
      EXPECT_LT(end.after, 5s);
      if (r == who) continue;
      expect_text(end, "rank " + std::to_string(who));
      expect_text(end, "cannot join: no memory");
    }
  }
}

TEST(TcpMeetingTest, NobodyToHearOfADeclineTakesLittleTime) {
  const TcpCase here{.size = 3};
  const auto ends = run_some(
      {0}, [&](int rank) { TcpMeeting::decline(here.request(rank), here.place(), "no memory"); });
  EXPECT_EQ(ends[0].text, "ok");
  EXPECT_LT(ends[0].after, 3s);
}

TEST(TcpMeetingTest, WhoCannotGoOnIsHeard) {
  for (const int who : {0, 2}) {
    const TcpCase here{.size = 4};
    const auto ends = run_tcp(4, [&](int rank) {
      TcpMeeting meeting(here.request(rank), here.place());
      EXPECT_EQ(meeting.exchange("x")[1], "x");
      if (rank == who) {
        meeting.decline("no device");
        meeting.decline("twice");
        EXPECT_THROW((void)meeting.exchange("x"), Error);
      } else {
        (void)meeting.exchange("x");
      }
    });
    for (int r = 0; r < 4; ++r) {
      const TcpEnd& end = ends[static_cast<std::size_t>(r)];
      EXPECT_LT(end.after, 5s);
      if (r == who) continue;
      expect_text(end, "rank " + std::to_string(who));
      expect_text(end, "cannot join: no device");
    }
  }
}

TEST(TcpMeetingTest, WhoVanishesIsNamedAtOnce) {
  for (const int who : {0, 1}) {
    const TcpCase here{.size = 3};
    const auto ends = run_tcp(3, [&](int rank) {
      TcpMeeting meeting(here.request(rank), here.place());
      if (rank != who) (void)meeting.exchange("x");
    });
    for (int r = 0; r < 3; ++r) {
      const TcpEnd& end = ends[static_cast<std::size_t>(r)];
      EXPECT_LT(end.after, 5s);
      if (r == who) continue;
      expect_text(end, "rank " + std::to_string(who));
      expect_text(end, "went away during set-up of");
    }
  }
}

TEST(TcpMeetingTest, WhoVanishesBeforeAllAreThereIsNamedAtOnce) {
  const TcpCase here{.size = 4};
  const auto ends = run_some({0, 1, 2}, [&](int rank) {
    if (rank != 2) {
      (void)TcpMeeting(here.request(rank), here.place());
      return;
    }
    const RawTcp guest = RawTcp::connect(here.port);
    const std::string hello = encode_hello(with_members(here.request(2)), fresh_nonce(), {});
    guest.send(encode_header(TcpKind::hello, hello.size()) + hello);
    EXPECT_FALSE(guest.receive().empty());  // it has arrived
  });
  for (const int r : {0, 1}) {
    const TcpEnd& end = ends[static_cast<std::size_t>(r)];
    expect_text(end, "rank 2 (127.0.0.1, process");
    expect_text(end, "went away during set-up of job 'tcp-test'");
    EXPECT_LT(end.after, 5s);
  }
}

TEST(TcpMeetingTest, WhoDoesNotAnswerIsNamed) {
  const TcpCase here{.size = 3, .patience = 500ms};
  std::atomic<int> at_end{0};
  const auto ends = run_tcp(3, [&](int rank) {
    TcpMeeting meeting(here.request(rank), here.place());
    if (rank == 1) {
      while (at_end < 2) std::this_thread::sleep_for(5ms);
      return;
    }
    try {
      (void)meeting.exchange("x");
    } catch (const Error&) {
      ++at_end;
      throw;
    }
  });
  for (const int r : {0, 2}) {
    const TcpEnd& end = ends[static_cast<std::size_t>(r)];
    expect_text(end, "rank 1 did not answer during set-up of job 'tcp-test'");
    EXPECT_LT(end.after, 4s);
  }
}

}  // namespace
}  // namespace ubep::test
