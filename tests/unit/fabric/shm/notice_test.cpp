#include "fabric/shm/notice.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "base/fabric_facts.hpp"
#include "ubep/version.hpp"

namespace ubep {
namespace {

class NoticeTest : public testing::Test {
 protected:
  std::byte* segment() { return reinterpret_cast<std::byte*>(words_.data()); }
  alignas(64) std::array<std::uint64_t, kFabricHeaderBytes / 8> words_ = {};
};

TEST_F(NoticeTest, TheIdentityComesBack) {
  Identity seen;
  EXPECT_FALSE(read_identity(segment(), seen));
  Identity shown{.group = 77,
                 .rank = 2,
                 .size = 3,
                 .pid = 4711,
                 .slots = 5,
                 .first_op = 512,
                 .first_word = 1792,
                 .slot_bytes = 192};
  std::strcpy(shown.job, "a job");
  show_identity(segment(), shown);
  ASSERT_TRUE(read_identity(segment(), seen));
  EXPECT_EQ(seen.group, 77U);
  EXPECT_EQ(seen.rank, 2);
  EXPECT_EQ(seen.size, 3);
  EXPECT_EQ(seen.pid, 4711);
  EXPECT_EQ(seen.slots, 5U);
  EXPECT_EQ(seen.first_op, 512U);
  EXPECT_EQ(seen.first_word, 1792U);
  EXPECT_EQ(seen.slot_bytes, 192U);
  EXPECT_STREQ(seen.job, "a job");
}

// As a rank that lies may show them.
TEST_F(NoticeTest, TextsEnd) {
  Identity endless;
  std::memset(endless.job, 'j', sizeof(endless.job));
  show_identity(segment(), endless);
  Identity seen;
  ASSERT_TRUE(read_identity(segment(), seen));
  EXPECT_EQ(std::string(seen.job), std::string(127, 'j'));
  show_wait(segment(), {});
  std::memset(segment() + 320 + 16, 0xff, 512 - 336);
  WaitShown wait;
  ASSERT_TRUE(read_wait(segment(), wait));
  EXPECT_EQ(std::strlen(wait.text), sizeof(wait.text) - 1);
  EXPECT_STREQ(wait.status.what, "");
  EXPECT_EQ(wait.status.message(), "?");
}

TEST_F(NoticeTest, OtherWireVersionsAreNotRead) {
  show_identity(segment(), {.rank = 1});
  const std::uint32_t other = kWireVersion + 1;
  std::memcpy(segment() + 144, &other, sizeof(other));
  Identity seen;
  EXPECT_FALSE(read_identity(segment(), seen));
}

TEST_F(NoticeTest, TheWaitComesBack) {
  WaitShown seen;
  ASSERT_TRUE(read_wait(segment(), seen));
  EXPECT_TRUE(seen.status.ok());
  Status status;
  status.code = Code::not_ready;
  status.kind = OpKind::combine;
  status.word = Word::out;
  status.rank = 3;
  status.peer = 1;
  status.epoch = 12;
  status.expected = 24;
  status.seen = 22;
  status.missing = 0b10;
  status.expert = 6;
  status.rows = 9;
  status.first_token = 2;
  status.last_token = 8;
  status.what =
      "a text that is longer than what there is room for, which are ninety-five characters and a "
      "zero "
      "behind them";
  show_wait(segment(), {.since_ns = 99, .looked_ns = 101, .status = status});
  ASSERT_TRUE(read_wait(segment(), seen));
  EXPECT_EQ(seen.since_ns, 99U);
  EXPECT_EQ(seen.looked_ns, 101U);
  EXPECT_EQ(seen.text, std::string(status.what).substr(0, 95));
  seen.status.what = status.what;
  EXPECT_EQ(seen.status.message(), status.message());
  EXPECT_EQ(seen.status.expert, 6);
  EXPECT_EQ(seen.status.rows, 9U);
  EXPECT_EQ(seen.status.first_token, 2U);
  EXPECT_EQ(seen.status.last_token, 8U);
}

// Whoever reads while it is written gets one of the values, never a mixture.
TEST_F(NoticeTest, AWaitIsReadWhole) {
  std::atomic<bool> stop = false;
  std::thread writer([&] {
    for (std::uint64_t i = 1; !stop; ++i) {
      Status status;
      status.epoch = status.expected = status.seen = status.missing = i;
      status.rows = status.first_token = static_cast<std::uint32_t>(i);
      show_wait(segment(), {.since_ns = i, .status = status});
    }
  });
  int whole = 0;
  for (int tries = 0; tries < 200'000; ++tries) {
    WaitShown seen;
    if (!read_wait(segment(), seen)) continue;
    ++whole;
    const std::uint64_t i = seen.since_ns;
    ASSERT_EQ(seen.status.epoch, i);
    ASSERT_EQ(seen.status.missing, i);
    ASSERT_EQ(seen.status.first_token, static_cast<std::uint32_t>(i));
  }
  stop = true;
  writer.join();
  EXPECT_GT(whole, 0);
}

}  // namespace
}  // namespace ubep
