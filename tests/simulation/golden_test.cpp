// Whole histories, byte for byte: the same from every compiler and on every machine. One that
// changes was meant to, or is a bug. The files of golden/ are written again with
//
//   UBEP_WRITE_GOLDEN=1 ubep_simulation_tests --gtest_filter='Golden*'
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "sim/layer_run.hpp"
#include "simulation/sim_run.hpp"

namespace ubep::test {
namespace {

namespace fs = std::filesystem;

constexpr int kMostLines = 150;

fs::path here() { return fs::path(__FILE__).parent_path(); }

void expect_golden(const std::string& name, const std::string& text) {
  const fs::path path = here() / "golden" / (name + ".txt");
  if (std::getenv("UBEP_WRITE_GOLDEN") != nullptr) {
    std::ofstream(path, std::ios::binary) << text;
  }
  std::ifstream file(path, std::ios::binary);
  const std::string golden{std::istreambuf_iterator<char>(file), {}};
  ASSERT_NE(golden, "") << path << " cannot be read";
  EXPECT_LE(std::count(golden.begin(), golden.end(), '\n'), kMostLines);
  if (text == golden) return;
  std::istringstream got(text), want(golden);
  std::string got_line, want_line;
  for (int line = 1; got_line == want_line; ++line) {
    got_line = want_line = "(the end)";
    std::getline(got, got_line);
    std::getline(want, want_line);
    if (got_line != want_line || got_line == "(the end)") {
      FAIL() << name << ".txt:" << line << " is\n  " << want_line << "\nnow it is\n  " << got_line;
    }
  }
}

struct Golden {
  const char* name;
  std::uint64_t seed;
  std::vector<std::string> shows;
};

void PrintTo(const Golden& golden, std::ostream* to) { *to << golden.name; }

class GoldenTest : public testing::TestWithParam<Golden> {};

TEST_P(GoldenTest, TheTranscriptIsTheSame) {
  const std::string text = transcript_of(GetParam().seed);
  expect_golden(GetParam().name, text);
  for (const std::string& word : GetParam().shows) {
    EXPECT_NE(text.find(word), std::string::npos) << word;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Seeds, GoldenTest,
    testing::Values(Golden{"pull_death", 57, {"3 lanes", "not mapped", "weak memory", " dies"}},
                    Golden{"push_death", 264, {"3 lanes", "weak memory", "sent[", " dies"}},
                    Golden{"push_record", 137, {"2 lanes", "links", "sent[", "spoils its record"}},
                    Golden{"mismatch", 136, {"3 lanes", "weak memory", "mismatch:"}}),
    [](const auto& golden) { return golden.param.name; });

// Two paths on the generic pod, with jitter.
TEST(GoldenTimesTest, TheTimesAreTheSame) {
  std::string text;
  sim::LayerOptions options;
  options.pod = sim::read_pod((here() / "../../pods/generic.json").string());
  options.pod.jitter = 250 * sim::kNanosecond;
  options.ranks = 4;
  options.lanes = 3;
  options.tokens = 24;
  options.hidden = 7168;
  options.topk = 8;
  options.experts = 32;
  for (const Path path : {Path::push, Path::read}) {
    options.path = path;
    options.layout = path == Path::read ? Layout::rank_major : Layout::expert_major;
    const sim::LayerResult result = sim::run_layer(options);
    text += fmt::format("{}, {}: {} ranks, {} lanes, {} tokens; ps\n", name(path),
                        name(options.layout), options.ranks, options.lanes, options.tokens);
    text += fmt::format("rank {:>12} {:>12} {:>12}\n", "dispatch", "first read", "combine");
    for (std::size_t r = 0; r < result.ranks.size(); ++r) {
      const sim::RankTimes& times = result.ranks[r];
      text += fmt::format("{:>4} {:>12} {:>12} {:>12}\n", r, times.dispatch, times.first_read,
                          times.combine);
    }
    text += fmt::format("{} events, {} bytes\n", result.events, result.bytes_sent);
  }
  expect_golden("times", text);
}

}  // namespace
}  // namespace ubep::test
