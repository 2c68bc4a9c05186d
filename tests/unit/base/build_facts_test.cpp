// The text of `ubep --version`.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

#include "ubep/version.hpp"

namespace ubep {
namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

TEST(BuildFacts, NameVersionsCommitCompilerAndInstructionSets) {
  const auto lines = lines_of(build_facts());
  ASSERT_EQ(lines.size(), 3U) << build_facts();
  const auto versions = fmt::format("ubep {}, wire {}, commit ", kVersion, kWireVersion);
  EXPECT_EQ(lines[0].substr(0, versions.size()), versions);
  EXPECT_GE(lines[0].size(), versions.size() + std::string("unknown").size());
#if defined(__clang__)
  EXPECT_NE(lines[1].find(fmt::format("Clang {}.", __clang_major__)), std::string::npos);
#else
  EXPECT_NE(lines[1].find(fmt::format("GNU {}.", __GNUC__)), std::string::npos) << lines[1];
#endif
#if defined(__SANITIZE_ADDRESS__)
  EXPECT_NE(lines[1].find("sanitizers address"), std::string::npos) << lines[1];
#endif
}

TEST(BuildFacts, InstructionSetHereIsOneOfThoseBuilt) {
  const std::string line = lines_of(build_facts()).back();
  const std::size_t here = line.find(", here ");
  const std::size_t built = line.find("built for ");
  ASSERT_NE(here, std::string::npos) << line;
  ASSERT_NE(built, std::string::npos) << line;
  const std::string name = line.substr(here + 7) + " ";
  EXPECT_NE((line.substr(built + 9, here - built - 9) + " ").find(" " + name), std::string::npos)
      << line;
}

}  // namespace
}  // namespace ubep
