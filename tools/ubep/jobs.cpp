#include "tools/ubep/jobs.hpp"

#include <algorithm>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

namespace ubep::tools {
namespace {

class Jobs {
 public:
  Jobs(std::size_t count, const std::function<void(std::size_t)>& job) : count_(count), job_(job) {}

  void work() {
    while (const std::optional<std::size_t> i = take()) {
      try {
        job_(*i);
      } catch (...) {
        fail(*i);
      }
    }
  }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::optional<std::size_t> take() {
    const std::lock_guard lock(mutex_);
    if (error_ || next_ == count_) return std::nullopt;
    return next_++;
  }
  // All jobs before a failed one were handed out, and end: so the first of them is found.
  void fail(std::size_t i) {
    const std::lock_guard lock(mutex_);
    if (error_ && failed_ < i) return;
    failed_ = i;
    error_ = std::current_exception();
  }

  std::size_t count_;
  const std::function<void(std::size_t)>& job_;
  std::mutex mutex_;
  std::size_t next_ = 0;
  std::size_t failed_ = 0;
  std::exception_ptr error_;
};

}  // namespace

void run_jobs(std::size_t count, int threads, const std::function<void(std::size_t)>& job) {
  Jobs jobs(count, job);
  const std::size_t wanted = std::min(count, static_cast<std::size_t>(std::max(threads, 1)));
  std::vector<std::thread> others;
  for (std::size_t t = 1; t < wanted; ++t) others.emplace_back([&jobs] { jobs.work(); });
  jobs.work();
  for (std::thread& thread : others) thread.join();
  jobs.rethrow();
}

}  // namespace ubep::tools
