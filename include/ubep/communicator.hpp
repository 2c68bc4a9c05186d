// A communicator is a fixed set of ranks that exchange tokens.
//
//   auto comm = ubep::Communicator::create(bootstrap, {.num_experts = 64, .max_tokens = 128,
//                                                      .max_hidden = 7168, .max_topk = 8});
//   ubep::Handle handle;
//   comm.dispatch(x, routing, {}, handle).or_throw();
//   ... experts read handle.received() and write handle.expert_output() ...
//   comm.combine(handle, {.out = out}).or_throw();
//
// All ranks start operations in the same order. One thread at a time calls a communicator, a second
// one gets Error{misuse}; only step(), poll(), poll_expert() and publish() may run on several
// threads at once, beside wait() on one: every lane must have left them before anything else is
// called. In a forked child every call throws.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "ubep/bootstrap.hpp"
#include "ubep/combine.hpp"
#include "ubep/dispatch.hpp"
#include "ubep/export.hpp"
#include "ubep/handle.hpp"
#include "ubep/stats.hpp"
#include "ubep/status.hpp"
#include "ubep/trace.hpp"
#include "ubep/types.hpp"

namespace ubep {

// The same on every rank; a difference is an error at creation that names field, rank and values.
// `store` and `timeout` are this rank's own affair.
struct CommunicatorOptions {
  int num_experts = 0;                    // E, 1..65535
  std::vector<std::int32_t> expert_rank;  // [E] owner of each expert; empty = blocks, the first
                                          // E mod R ranks own one expert more
  int max_tokens = 0;                     // of one rank in one dispatch; 0 is allowed
  int max_hidden = 0;
  DType max_dtype = DType::bf16;  // with max_hidden: the largest row; smaller ones may be sent
  int max_payload = 0;            // bytes of all payloads of a token, each rounded up to 8
  int max_topk = 8;               // 1..64
  int slots = 2;                  // dispatches in flight, 1..16
  int expert_capacity = 0;        // most rows of a local expert in expert_padded; 0 = not used
  // Peers may store rows into this rank's inbox: Path::push, and `automatic` where it is faster. A
  // peer gone wrong can then falsify rows; without, it can falsify only its own.
  bool push = true;
  // How pushed rows are known to have arrived; refused where the fabric cannot carry it.
  Protocol protocol = Protocol::automatic;
  int checksum_rows = 0;  // Protocol::checksum: rows of a batch; 0 = all from one rank to another
  bool bsp = false;       // room for the windows of Path::bsp; needs push
  // Pushed rows of expert layouts go to a block of their source and are copied from there: a copy
  // more, but sources wait for nobody's counts. Protocols that decode always do so.
  bool stage_pushed = false;
  Store store = Store::automatic;
  std::chrono::milliseconds timeout{0};  // of waiting calls; 0 = UBEP_TIMEOUT_MS, else 30 s
};

// What run_layer() does with received rows, and where its result goes.
struct Layer {
  std::function<void(Handle&)> experts;
  Rows out;
};

struct GroupConfig;
struct LayerRound;

class UBEP_API Communicator {
 public:
  // Collective. Throws Error{invalid_argument, setup} within bootstrap.timeout (ranks other than 0
  // wait 2 s longer for rank 0 to tell them why). A rank that cannot join tells the others why.
  static Communicator create(const Bootstrap& bootstrap, const CommunicatorOptions& options);
  // What create() would reserve on `rank`, where all ranks are on one host.
  static MemoryPlan plan_memory(const CommunicatorOptions& options, int rank, int size);

  ~Communicator();
  Communicator(Communicator&&) noexcept;
  Communicator& operator=(Communicator&&) noexcept;

  int rank() const;
  int size() const;
  int num_local_experts() const;

  // Sends x [num_tokens, hidden] to the owners of its experts. Waits until all sources' rows are
  // here. `x` must stay unchanged until the lease of `handle` ends (own rows are read from it).
  // Errors as start_dispatch, and timeout, peer_lost, mismatch, corrupt. A timeout leaves it
  // pending: wait(). But not one on `done` or `armed`, a slot that peers have not given back:
  // nothing was started then, and dispatch() can be called again.
  Status dispatch(const Input& in, const Routing& routing, const DispatchOptions& options,
                  Handle& handle);
  Status dispatch(const Input& in, const Handle& cached, Handle& handle);
  // Brings the outputs back; ends the lease. Errors as start_combine, and as above.
  Status combine(Handle& handle, const CombineArgs& args);

  // A whole layer of any number of tokens with the memory of max_tokens: as many rounds of
  // dispatch, `experts` and combine as the rank with the most tokens needs; a rank that has no more
  // sends none. `experts` reads handle.received() and writes handle.expert_output(); it is called
  // once a round, on this thread, whether there are rows or not. All ranks call run_layer(). out:
  // [num_tokens, hidden] of x's hidden and dtype, complete on return; handle.valid_tokens() is then
  // of all tokens. The handle must hold no lease. Errors as dispatch and combine: peer_lost and
  // no_capacity are those of the first round that had them, the others are run all the same. After
  // timeout, slot_busy or an exception of `experts` the same call, with the same tensors, goes on
  // where it was (`experts` are then called again for their round); release() gives the layer up,
  // which peers are told as a mismatch.
  Status run_layer(const Input& in, const Routing& routing, const DispatchOptions& options,
                   const Layer& layer, Handle& handle);

  // The same without waiting. They never wait: slot_busy, not_ready (a peer has not given its slot
  // back yet, or with Protocol::sentinel not made its first call, or the dispatch is not complete)
  // and no_capacity (more tokens than max_tokens) publish nothing and can be retried. Arguments
  // that can never be right throw Error{invalid_argument}. Ranks may differ in path (but bsp and
  // allgather), in_place, contiguous, mapped_view, weighting, expert_alignment and expert_capacity.
  // Peers see more than 1 MiB of rows, and pushed rows of expert layouts, only once step() has
  // stored them.
  Status start_dispatch(const Input& in, const Routing& routing, const DispatchOptions& options,
                        Handle& handle);
  // Same routing and options as `cached` (a handle whose dispatch completed; all ranks must take
  // handles of the same dispatch). `cached` and `handle` may be the same object.
  Status start_dispatch(const Input& in, const Handle& cached, Handle& handle);
  // `args.out` (and `args.y`) must live until the combine is complete.
  Status start_combine(Handle& handle, const CombineArgs& args);

  // Moves every started operation on, in order, without waiting; returns the work done (0 = idle).
  // Lanes 0..lanes-1, of 64 at most, may call at the same time, e.g. from an OpenMP region. The
  // calls that wait are lane 0.
  int step(int lane = 0, int lanes = 1);
  // How many lanes will call step() at once (1..64, at first 1): rows are cut for so many, and each
  // looks first after its role. Others may come and any may stay away. For operations that start
  // from now on; none may be pending. With more than one, peers see rows only once step() has
  // stored them, however few they are. Throws Error{invalid_argument}: roles that are not `lanes`
  // in all, or without any that counts or sends.
  void set_lanes(int lanes, const Roles& roles = {}, SendOrder order = SendOrder::scheduled);
  // Whom step() tells what each lane does; null = nobody. It must outlive the communicator, or be
  // taken away. No operation may be pending. Nothing is told where the library was built with
  // UBEP_TRACE=OFF.
  void set_tracer(Tracer* tracer);
  // State of the handle's latest operation: not_ready while it is pending.
  Status poll(const Handle& handle) const;
  // With DispatchOptions::by_expert: ok once the rows of the `expert`-th local expert are here,
  // often before the dispatch is complete; received() and expert_output() may then be called, for
  // the rows of such experts. Else as poll(). Throws Error{invalid_argument, misuse}.
  Status poll_expert(const Handle& handle, int expert) const;
  // Steps until the expert's rows are here. timeout leaves the dispatch pending. Errors as wait().
  Status wait_expert(const Handle& handle, int expert);
  Status wait_expert(const Handle& handle, int expert,
                     std::chrono::steady_clock::time_point deadline);
  // With CombineArgs::by_expert, once for each local expert in any order: its outputs are complete;
  // peers sum them while others are still being computed. The combine is not complete before all
  // are. Returns mismatch or corrupt when the communicator has failed. Throws
  // Error{invalid_argument, misuse}.
  Status publish(Handle& handle, int expert);
  // Steps until the handle's latest operation is complete. timeout leaves it pending.
  Status wait(Handle& handle);
  Status wait(Handle& handle, std::chrono::steady_clock::time_point deadline);

  // Ends the lease without a combine. A peer that combines this epoch gets mismatch.
  void release(Handle& handle);

  // A buffer for the next dispatch's x, [num_tokens, hidden]. Near it is the slot itself, so that
  // nothing is copied; far it is private memory. Valid until that dispatch's lease ends; the next
  // start_dispatch must pass it. slot_busy while an earlier buffer or a lease is in the way, and
  // not_ready until peers have given their slot back: step() and try again.
  Status input(std::int64_t num_tokens, std::int64_t hidden, DType dtype, Rows& x);

  CommunicatorFacts facts() const;
  MemoryPlan memory() const;

  // Collective of `members`: ranks of this communicator that stay, and processes that call create()
  // with the same Bootstrap::members (and job and options) at about that time: restarted ranks, or
  // others up to `size`. Ranks that are not named close(). No handle may hold a lease, and views of
  // earlier ones end, unless the communicator has failed, which this mends, too. Epochs begin anew.
  // Throws Error{invalid_argument, misuse}, and Error{setup} within bootstrap.timeout when one does
  // not come; then this communicator is as it was, and the call can be repeated. Costs a set-up,
  // and for its time the memory of two.
  void update_membership(std::vector<int> members);
  // The ranks that took part from create() or update_membership() on, lost ones included.
  std::vector<int> members() const;
  // Ends the process of `rank` (SIGKILL), so that it is lost for all: for a rank that hangs. A rank
  // that is masked can never write again. Nothing where it is gone already. Throws Error{misuse}
  // where ranks are threads or it is the own rank, Error{setup} where it may not be ended: it is
  // then as it was.
  void mask(int rank);

  // Local and idempotent; also what the destructor does. Peers that still need this rank's rows
  // keep them; later operations of theirs report that it left.
  void close();

 private:
  struct Impl;
  Impl& here() const;  // throws when moved from, or in a forked child
  Impl& open() const;  // throws when closed, too
  explicit Communicator(std::unique_ptr<Impl> impl);
  Status start_round(const Input& in, const Routing& routing, const DispatchOptions& options,
                     Handle& handle, const LayerRound& round);
  Status dispatch_round(const Input& in, const Routing& routing, const DispatchOptions& options,
                        Handle& handle, const LayerRound& round);
  static Status end_layer(Handle& handle, const Status& status);
  const GroupConfig& config() const;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ubep
