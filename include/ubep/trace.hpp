// What the lanes of a rank spend their time on.
#pragma once

#include <cstdint>

#include "ubep/export.hpp"

namespace ubep {

// What one lane did, or waited for, since it last said so.
enum class Activity : std::uint8_t {
  count,      // op lines and records of peers: read, checked, turned into a plan
  send,       // own rows or outputs stored for peers
  receive,    // received rows brought to their place; outputs summed
  wait_flag,  // a peer's word or rows are not here
  wait_base,  // where rows go is not known yet
  barrier,    // bsp: other lanes of this rank are still in the phase
  idle,       // nothing left for this lane
};
inline constexpr int kActivities = 7;

// Told by every lane of a communicator, from step() and, as lane 0, from the calls that start, wait
// and end; it reads its own clock. Lane numbers are those that step() is called with, 0..63: two
// threads tell of the same one only if they call with the same one.
class UBEP_API Tracer {
 public:
  virtual ~Tracer() = default;
  // The time since this lane's last call went to `activity`.
  virtual void charge(int lane, Activity activity) = 0;
};

// Which lanes look first after what; any of them helps where its own role has nothing to do. All 0:
// by the library's cost model (docs/adr/0016-roles.md).
struct Roles {
  int count = 0;    // lanes [0, count)
  int send = 0;     // the next ones
  int receive = 0;  // the rest
};

// In what order rows are pushed, where several lanes do it (docs/adr/0014-schedule.md).
enum class SendOrder : std::uint8_t {
  scheduled,  // every lane the same mix of near and far destinations
  by_token,   // as the tokens come; what has no schedule
};

}  // namespace ubep
