#include "tools/ubep/jobs.hpp"

#include <gtest/gtest.h>

#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace ubep::tools {
namespace {

TEST(JobsTest, RunsEachJobOnce) {
  for (const int threads : {0, 1, 2, 5, 100}) {
    std::mutex mutex;
    std::vector<int> runs(40);
    run_jobs(runs.size(), threads, [&](std::size_t i) {
      const std::lock_guard lock(mutex);
      ++runs[i];
    });
    EXPECT_EQ(runs, std::vector<int>(40, 1)) << threads << " threads";
  }
  run_jobs(0, 3, [](std::size_t) { FAIL(); });
}

TEST(JobsTest, OneThreadIsTheCallers) {
  std::vector<std::size_t> order;
  run_jobs(3, 1, [&](std::size_t i) { order.push_back(i); });  // no lock: on this thread
  EXPECT_EQ(order, (std::vector<std::size_t>{0, 1, 2}));
}

TEST(JobsTest, ThrowsWhatTheFirstFailedJobThrows) {
  for (const int threads : {1, 2, 7}) {
    for (int repeat = 0; repeat < 20; ++repeat) {
      std::string text;
      try {
        run_jobs(30, threads, [](std::size_t i) {
          if (i % 10 == 3) throw std::runtime_error(std::to_string(i));
        });
      } catch (const std::runtime_error& error) {
        text = error.what();
      }
      EXPECT_EQ(text, "3") << threads << " threads";
    }
  }
}

}  // namespace
}  // namespace ubep::tools
