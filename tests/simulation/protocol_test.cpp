// Protocols of pushed rows on simulated machines that tear, delay and reorder what is put, with
// deaths, early releases and late lanes: rows are right in the end, or set-up has refused. And the
// planted faults of a fabric that promises more than it keeps are found.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "protocol/protocols.hpp"
#include "simulation/sim_run.hpp"
#include "support/case_runner.hpp"

namespace ubep::test {
namespace {

#if defined(__SANITIZE_ADDRESS__)
constexpr int kSeeds = 30;
#else
constexpr int kSeeds = 300;
#endif
constexpr int kFindingSeeds = 1000;  // at most, where one of them must fail

std::vector<Protocol> every_protocol() {
  std::vector<Protocol> ids;
  for (const RowProtocol* protocol : all_protocols()) ids.push_back(protocol->id());
  return ids;
}

// The first seed that fails, and how; 0 = none did.
std::uint64_t first_failure(const Cuts& cuts, int seeds, std::string& error) {
  for (std::uint64_t seed = 1; seed <= static_cast<std::uint64_t>(seeds); ++seed) {
    error = run(make_setup(seed, cuts)).error;
    if (!error.empty()) return seed;
  }
  return 0;
}

class ProtocolSeedsTest : public testing::TestWithParam<Protocol> {};

TEST_P(ProtocolSeedsTest, EveryCallReturnsWhatItShould) {
  for (const int checksum_rows : {0, 1, 3}) {
    if (checksum_rows != 0 && GetParam() != Protocol::checksum) continue;
    const Cuts cuts{.protocol = GetParam(), .checksum_rows = checksum_rows};
    for (const std::uint64_t seed : seeds_of_group(0, kSeeds)) {
      const auto setup = make_setup(seed, cuts);
      ASSERT_EQ(run(setup).error, "")
          << "rerun: ubep_fuzz --seed " << seed << cuts.arguments() << " --shrink\n"
          << describe(setup);
    }
  }
}

// What a protocol says of itself, it does not need: the order of the word behind the rows.
TEST_P(ProtocolSeedsTest, RowsThatAreDecodedNeedNoOrderedSignal) {
  const bool announces = GetParam() == Protocol::sentinel;  // rows that collide
  const bool decodes = find_protocol(GetParam()).decodes();
  if (GetParam() == Protocol::fence) return;  // a release relies on the signal's order
  const Cuts cuts{.no_fates = true, .protocol = GetParam(), .loses_signal = true};
  std::string error;
  const bool holds = decodes && !announces;
  const std::uint64_t seed = first_failure(cuts, holds ? kSeeds : kFindingSeeds, error);
  EXPECT_EQ(seed == 0, holds) << "seed " << seed << ": " << error;
}

// A fabric that tears blocks which it said it never tears: wrong rows, not silence.
TEST_P(ProtocolSeedsTest, ABlockThatIsTornAgainstThePromiseIsFoundByTheseTests) {
  const std::uint64_t block = find_protocol(GetParam()).row_grid();
  if (block == kLineBytes || block == 16) return;  // bare rows; 16 is the smallest unit but one
  const Cuts cuts{.no_fates = true, .protocol = GetParam(), .claims_unit = 4096};
  std::string error;
  EXPECT_NE(first_failure(cuts, kFindingSeeds, error), 0U);
}

INSTANTIATE_TEST_SUITE_P(All, ProtocolSeedsTest, testing::ValuesIn(every_protocol()),
                         [](const auto& test) {
                           std::string text = name(test.param);
                           std::replace(text.begin(), text.end(), '-', '_');
                           return text;
                         });

}  // namespace
}  // namespace ubep::test
