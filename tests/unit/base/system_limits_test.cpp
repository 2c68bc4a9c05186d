// What is said of a failed call: the limit, its value, what to do.
#include "base/system_limits.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cerrno>
#include <string>

#include "support/errors.hpp"

namespace ubep {
namespace {

TEST(SystemLimitsTest, EachLimitIsNamed) {
  rlimit files = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &files), 0);
  test::expect_parts(explain(EMFILE), {"too many open files", std::to_string(files.rlim_cur),
                                       "ulimit -n", "raise it"});
  test::expect_parts(explain(ENFILE),
                     {"too many open files on this machine", "/proc/sys/fs/file-max", "raise it"});
  test::expect_parts(explain(ENOMEM), {"max_tokens, max_topk or slots"});
  test::expect_parts(explain_fork(EAGAIN), {"processes", "ulimit -u", "pids.max", "fewer ranks"});
  EXPECT_EQ(explain(EACCES), "Permission denied");
}

TEST(SystemLimitsTest, SpareFilesAreGivenBack) {
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit now = {};
  {
    const SpareFiles spare;
    getrlimit(RLIMIT_NOFILE, &now);
    EXPECT_EQ(now.rlim_cur, before.rlim_max);
  }
  getrlimit(RLIMIT_NOFILE, &now);
  EXPECT_EQ(now.rlim_cur, before.rlim_cur);
}

}  // namespace
}  // namespace ubep
