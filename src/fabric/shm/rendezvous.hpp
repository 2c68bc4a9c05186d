// How the ranks of one host exchange their segments: rank 0 listens on an abstract Unix socket
// named by user and job, collects every rank's descriptor and hands the full set to each.
//
// Both sides check the other's user. Whatever goes wrong at rank 0 (a difference in the
// configuration, a missing or doubled rank) is told to every rank that has arrived.
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "fabric/shm/segment.hpp"

namespace ubep {

// A value that all ranks must give alike, with the name of the option behind it.
struct AgreedField {
  const char* name = nullptr;
  std::uint64_t value = 0;
  const char* (*text)(std::uint64_t) = nullptr;  // of a value; null = the number
};
inline constexpr std::size_t kMaxAgreedFields = 13;
using AgreedFields = std::array<AgreedField, kMaxAgreedFields>;

struct JoinRequest {
  int rank = 0;
  int size = 1;
  std::string job;
  std::chrono::steady_clock::time_point deadline;
  AgreedFields fields;
  std::vector<std::uint64_t> segment_bytes;  // [R]
  std::vector<std::uint64_t> inbox_bytes;    // [R], or empty: nobody pushes
};

struct ProbeResult {
  double one_way_ns = 0;        // 0 = not measured
  std::vector<double> by_peer;  // rank 0: [R]
  int host_cpu = -1;            // where rank 0 was pinned
};

// Segments of all ranks, by rank.
using Segments = std::vector<std::shared_ptr<Segment>>;

// Ranks are processes. Collective; throws Error{setup} before the deadline has long passed. After
// the exchange rank 0 measures the flag latency to every peer, one after the other, while the
// others sleep.
Segments join_processes(const JoinRequest& request, std::shared_ptr<Segment> own,
                        ProbeResult& probe);

// Instead of the above, by a rank that cannot take part: those who wait are told why, at once.
// Takes up to two seconds when nobody is there to be told.
void decline_processes(const JoinRequest& request, const std::string& why);

namespace detail {

// Ranks are threads: peers use the owner's mapping, so that a race detector sees one address.
class ThreadRendezvous {
 public:
  explicit ThreadRendezvous(int size);
  Segments join(const JoinRequest& request, std::shared_ptr<Segment> own);
  // A rank cannot take part: those who wait, and those who are yet to come, are told why.
  void decline(const JoinRequest& request, const std::string& why);

 private:
  // Of one set-up, kept by those who wait for it.
  struct Outcome {
    bool known = false;
    Segments segments;
    std::string error;
  };
  std::string find_difference() const;
  std::string missing() const;
  void settle(std::string error);
  void tell(std::size_t rank);

  std::mutex mutex_;
  std::condition_variable changed_;
  int arrived_ = 0;
  Segments waiting_;
  std::vector<AgreedFields> fields_;
  std::string declined_;    // why the set-up that some ranks are yet to come to has failed
  std::vector<char> told_;  // [R] who knows
  std::shared_ptr<Outcome> outcome_ = std::make_shared<Outcome>();
};

}  // namespace detail
}  // namespace ubep
