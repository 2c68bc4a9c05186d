// The one virtual class: operations of one communicator over some fabric.
//
// Nothing here blocks, sleeps or reads a clock: a Waiter drives step() for real, a simulator or a
// test in its own time. Arguments were checked by the caller (src/api).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/fabric_facts.hpp"
#include "base/group_config.hpp"
#include "engine/handle_state.hpp"
#include "ubep/combine.hpp"
#include "ubep/dispatch.hpp"
#include "ubep/status.hpp"
#include "ubep/trace.hpp"

namespace ubep {

class Engine {
 public:
  virtual ~Engine() = default;

  // `options` are resolved: no `automatic` is left.
  virtual Status start_dispatch(const Input& in, const RoutingView& routing,
                                const DispatchOptions& options, HandleState& handle) = 0;
  // Repeats the routing of `cached`, which may be `handle`.
  virtual Status start_cached_dispatch(const Input& in, const HandleState& cached,
                                       HandleState& handle) = 0;
  virtual Status start_combine(HandleState& handle, const CombineArgs& args) = 0;
  // Any lane: the outputs of the `expert`-th local expert of a combine by expert are complete.
  // False: they were published before.
  virtual bool publish_expert(HandleState& handle, int expert) = 0;
  // Not ok: why the communicator has failed. Every operation returns it.
  virtual const Status& failure() const = 0;
  virtual int step(int lane, int lanes) = 0;

  // Looks at every peer that is not known to be lost. Costs up to one system call per peer.
  virtual void look_for_losses() = 0;
  // What the handle's pending operation (null: the oldest one) waits for: Code::not_ready with the
  // first missing peer.
  virtual Status waits_for(const HandleState* handle) const = 0;

  // Ends the handle's lease; completes own writes of a pending operation, waits for nobody.
  virtual void release(HandleState& handle) = 0;
  virtual Status input(std::int64_t num_tokens, std::int64_t hidden, DType dtype, Rows& x) = 0;
  // `near` or `far`, from the next dispatch or input() on.
  virtual void set_store(Store store) = 0;
  // How many lanes will step, and what each looks after first; all 0: by the cost model. From the
  // next operation on.
  virtual void set_lanes(int lanes, const Roles& roles, SendOrder order) = 0;
  virtual Roles roles() const = 0;   // of the latest operation
  virtual bool pending() const = 0;  // whether an operation is
  virtual bool holds_lease() const = 0;
  // Between operations; null = none.
  virtual void set_tracer(Tracer* tracer) = 0;
  // Whether all live peers have done with what they read of this rank, and with its help.
  virtual bool is_dispensable() const = 0;
  virtual void close() = 0;
};

struct EngineOptions {
  GroupConfig config;
  Store store = Store::far;  // resolved
  // A pushing source sums its bases itself while ranks x experts is at most this; beyond it, it
  // waits for the owners' tables.
  std::int64_t most_counts = 16 * 1024;
  // Bytes below which a second lane does not pay.
  std::uint64_t tile_bytes = 128 * 1024;
  // Up to here an operation's start stores own rows itself, so that peers depend on no later call.
  std::uint64_t start_bytes = 1 << 20;
  // Epochs and sequence numbers go on from here; on all ranks the same.
  std::uint64_t epoch = 0;
  // Narrow tags (row_protocol.hpp) are wiped out of a slot once they are so old.
  std::uint64_t scrub_every = std::uint64_t{1} << 30;
  std::vector<int> absent;  // ranks that take no part: lost, but nobody is told
  // All engines are made before the first operation of any: nobody needs to be told of armed
  // windows. A simulator's.
  bool made_together = false;
};

// Bytes of a rank's private row areas.
std::uint64_t private_bytes(const GroupConfig& config, int rank);

class ShmFabric;
std::shared_ptr<Engine> make_shm_engine(ShmFabric& fabric, const EngineOptions& options);
class UcxFabric;
std::shared_ptr<Engine> make_ucx_engine(UcxFabric& fabric, const EngineOptions& options);

}  // namespace ubep
