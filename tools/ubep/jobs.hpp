// Independent jobs on several threads.
//
//   run_jobs(options.size(), 2, [&](std::size_t i) { results[i] = run(options[i]); });
#pragma once

#include <cstddef>
#include <functional>

namespace ubep::tools {

// Calls job(0) ... job(count - 1), handed out in this order, on up to `threads` threads (1: on the
// calling one). When jobs throw, no more are handed out, and the exception of the first of them, by
// number, is thrown: the same one whatever `threads` is.
void run_jobs(std::size_t count, int threads, const std::function<void(std::size_t)>& job);

}  // namespace ubep::tools
