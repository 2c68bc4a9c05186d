#include "support/ranks.hpp"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>

namespace ubep::test {
namespace {

int status_of_thread(const RankBody& body, const Bootstrap& bootstrap) {
  try {
    body(bootstrap);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d: %s\n", bootstrap.rank, error.what());
    return 70;
  }
}

std::vector<int> thread_statuses(int size, const RankBody& body) {
  std::vector<int> statuses(static_cast<std::size_t>(size), 0);
  const ThreadGroup group(size);
  std::vector<std::thread> threads;
  const unsigned before = alarm(kRankSeconds);
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      statuses[static_cast<std::size_t>(rank)] = status_of_thread(body, group.bootstrap(rank));
    });
  }
  for (std::thread& thread : threads) thread.join();
  alarm(before);
  return statuses;
}

}  // namespace

const char* name(RankKind kind) {
  return kind == RankKind::threads     ? "threads"
         : kind == RankKind::processes ? "processes"
                                       : "hosts";
}

int free_port() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  const bool known = bind(fd, reinterpret_cast<sockaddr*>(&address), length) == 0 &&
                     getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0;
  close(fd);
  if (!known) throw std::runtime_error("no port is free");
  return ntohs(address.sin_port);
}

std::vector<int> rank_statuses(RankKind kind, int size, const RankBody& body) {
  if (kind == RankKind::threads) return thread_statuses(size, body);
  const int port = kind == RankKind::hosts ? free_port() : 0;
  return fork_ranks(size, [&](Bootstrap bootstrap) {
    alarm(kRankSeconds);
    if (kind == RankKind::hosts) {
      bootstrap.address = "127.0.0.1";
      bootstrap.port = port;
      setenv("UBEP_HOST_ID", std::to_string(host_of_rank(bootstrap.rank)).c_str(), 1);
      setenv("UCX_NET_DEVICES", "lo", 0);
    }
    body(bootstrap);
    return testing::Test::HasFailure() ? 1 : 0;
  });
}

void run_ranks(RankKind kind, int size, const RankBody& body) {
  const std::vector<int> statuses = rank_statuses(kind, size, body);
  for (std::size_t rank = 0; rank < statuses.size(); ++rank) {
    EXPECT_EQ(statuses[rank], 0) << name(kind) << ", rank " << rank;
  }
}

std::vector<int> await_children(const std::vector<pid_t>& children, std::chrono::seconds patience,
                                int unawaited) {
  const auto until = std::chrono::steady_clock::now() + patience;
  std::vector<int> statuses(children.size(), -1);
  std::size_t left = children.size() - (unawaited >= 0 ? 1 : 0);
  while (left != 0 && std::chrono::steady_clock::now() < until) {
    for (std::size_t i = 0; i < children.size(); ++i) {
      int status = 0;
      if (static_cast<int>(i) == unawaited || statuses[i] >= 0) continue;
      if (waitpid(children[i], &status, WNOHANG) != children[i]) continue;
      statuses[i] = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      --left;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(300));
  }
  for (std::size_t i = 0; i < children.size(); ++i) {
    if (statuses[i] >= 0) continue;
    kill(children[i], SIGKILL);
    waitpid(children[i], nullptr, 0);
  }
  return statuses;
}

void Gate::arrive() const { std::atomic_ref<int>(count_[0]).fetch_add(1); }

void Gate::wait() const {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(kRankSeconds / 2);
  while (std::atomic_ref<int>(count_[0]).load() < size_) {
    if (std::chrono::steady_clock::now() > deadline) throw std::runtime_error("a gate stays shut");
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

}  // namespace ubep::test
