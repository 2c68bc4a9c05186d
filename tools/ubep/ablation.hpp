// `ubep bench --ablate`: what each mechanism gains over what it is built on, and whether the time
// that lanes no longer wait explains it.
//
// Purpose: the table of steps, and the arithmetic and the print-out of their result.
// Not for: measuring (bench_rank.hpp).
#pragma once

#include <array>
#include <cstddef>
#include <cstdio>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tools/ubep/breakdown.hpp"
#include "tools/ubep/summary.hpp"
#include "ubep/communicator.hpp"

namespace ubep::tools {

inline constexpr std::array kAblationLanes = {1, 4, 8, 16};

// A line of the table. Steps with the same `adjust` share a communicator.
struct AblationStep {
  std::string name;
  Path path = Path::push;
  std::size_t on = 0;  // the step that it is built on; the first: itself
  SendOrder order = SendOrder::scheduled;
  void (*adjust)(CommunicatorOptions&) = nullptr;  // null = as for all of `ubep bench`
};
const std::vector<AblationStep>& ablation_steps();

enum class AblationTime : std::uint8_t { dispatch, combine, round_trip, cycle };
inline constexpr std::size_t kAblationTimes = 4;

// One step with one number of lanes.
struct AblationEntry {
  std::string step;
  std::size_t on = 0;     // entry that it is built on: an index into the point's entries
  std::size_t first = 0;  // entry of the first step with as many lanes
  int lanes = 1;
  std::string path;
  std::string store;
  Roles roles;
  double dispatch_copies = 0;  // of each received row
  double combine_copies = 0;
  std::array<Summary, kAblationTimes> us;
  int blocks = 1;  // that the samples come from, in turn with those of the other entries
  // From iterations of their own; nothing when the library does not trace.
  std::optional<std::array<Breakdown, 2>> spent;  // dispatch, combine

  const Summary& of(AblationTime time) const { return us[static_cast<std::size_t>(time)]; }
};

// Half the width of the interval that the median lies in, nearly surely: what one finds in a box
// plot's notches, with blocks for samples, since those of one block are not independent.
double noise_of(const Summary& us, int blocks);

enum class Verdict : std::uint8_t {
  no_gain,     // or none beyond the noise
  waits,       // lanes wait so much less
  work,        // more than that, and no more than the work that was saved, too
  unexplained  // more than both: look for a fault of the step before
};
const char* name(Verdict verdict);

// What a step saved of one operation, in microseconds; negative where it costs.
struct Saving {
  double gained = 0;  // of the median time
  double noise = 0;   // of `gained`
  double waits = 0;   // synchronisation share x time, before minus after
  double work = 0;    // the same of counting, sending and receiving
  Verdict verdict = Verdict::no_gain;
};
// Nothing without breakdowns, and for cycles, of which there are none.
std::optional<Saving> saving(const AblationEntry& before, const AblationEntry& after,
                             AblationTime time);

nlohmann::ordered_json to_json(const std::vector<AblationEntry>& entries);
void print_ablation(const std::vector<AblationEntry>& entries, std::FILE* out);

}  // namespace ubep::tools
