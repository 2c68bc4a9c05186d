#include "tools/ubep/atomic_file.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "tests/unit/tools/test_support.hpp"

namespace ubep::tools {
namespace {

namespace fs = std::filesystem;

TEST(AtomicFileTest, WritesAndReplacesAndLeavesNothingElse) {
  const TempFolder folder;
  write_file(folder.file("a.json"), "first, and longer");
  write_file(folder.file("a.json"), "second");
  EXPECT_EQ(folder.get("a.json"), "second");
  EXPECT_EQ(folder.num_files(), 1U);
}

TEST(AtomicFileTest, FollowsASymbolicLink) {
  const TempFolder folder;
  const std::string target = folder.put("target", "old");
  fs::create_symlink(target, folder.file("link"));
  write_file(folder.file("link"), "new");
  EXPECT_EQ(folder.get("target"), "new");
  EXPECT_TRUE(fs::is_symlink(folder.file("link")));
}

TEST(AtomicFileTest, RefusesWhatARenameWouldReplace) {
  const TempFolder folder;
  EXPECT_INPUT_ERROR(write_file("/dev/null", "text"), "not a regular file");
  EXPECT_INPUT_ERROR(write_file(folder.file(""), "text"), "not a regular file");
  ASSERT_EQ(::mkfifo(folder.file("pipe").c_str(), 0600), 0);
  EXPECT_INPUT_ERROR(write_file(folder.file("pipe"), "text"), "not a regular file");
}

TEST(AtomicFileTest, MissingFolderIsAnInputError) {
  const TempFolder folder;
  EXPECT_INPUT_ERROR(write_file(folder.file("no/such/file"), "text"), "No such file");
}

}  // namespace
}  // namespace ubep::tools
