// How the ranks of one machine exchange their segments: the first member, the meeting's host,
// listens on an abstract Unix socket named by user and job, collects every rank's descriptor and
// hands the full set to each.
//
// Both sides check the other's user. Whatever goes wrong at the host (a difference in the
// configuration, a missing or doubled rank) is told to every rank that has arrived.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "fabric/shm/job_key.hpp"
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
  std::vector<std::uint64_t> told_bytes;     // [R] of a segment, at its start: what a rank tells
                                             //     others, where they cannot read it themselves
  std::string host;                          // the same on ranks that can share memory
  std::vector<int> members;                  // who meets, ascending; empty = all ranks
  bool names_members = false;                // the caller gave them, be it all
  JobKey key;
};

struct ProbeResult {
  double one_way_ns = 0;        // 0 = not measured
  std::vector<double> by_peer;  // the host: [R]
  int host_cpu = -1;            // where the host was pinned
};

// Segments of all ranks, by rank.
using Segments = std::vector<std::shared_ptr<Segment>>;

// What a rendezvous ends with.
struct Meeting {
  Segments segments;
  std::uint64_t group = 0;  // a random number, the same for all
  ProbeResult probe;
};

// Ranks are processes. Collective; throws Error{setup} before the deadline has long passed. After
// the exchange the host measures the flag latency to every peer, one after the other, while the
// others sleep.
Meeting join_processes(const JoinRequest& request, std::shared_ptr<Segment> own);

// Instead of the above, by a rank that cannot take part: those who wait are told why, at once.
// Takes up to two seconds when nobody is there to be told.
void decline_processes(const JoinRequest& request, const std::string& why);

// The first field that differs, as text; empty = none. `theirs`: [kMaxAgreedFields].
std::string difference(const AgreedFields& mine, int my_rank, const std::uint64_t* theirs,
                       int their_rank);
// For Meeting::group.
std::uint64_t random_number();

}  // namespace ubep
