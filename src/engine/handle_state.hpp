// What a handle holds: the plan of a routing (shared by handles that repeat it), and the state of
// its latest operation and lease.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/rank_set.hpp"
#include "engine/row_encoder.hpp"
#include "memory/lane_set.hpp"
#include "memory/word.hpp"
#include "plan/receive_plan.hpp"
#include "plan/relay_plan.hpp"
#include "plan/send_plan.hpp"
#include "ubep/combine.hpp"
#include "ubep/dispatch.hpp"
#include "ubep/stats.hpp"
#include "ubep/status.hpp"

namespace ubep {

class Engine;
struct Op;

// Routing and plan of one dispatch; cached dispatches share it.
struct Routed {
  DispatchOptions options;  // path and reduction resolved
  const char* reason = "";  // of the path
  PlanShape shape;
  std::uint64_t origin = 0;  // epoch of the dispatch that made it
  SendPlan send;
  ReceivePlan receive;
  // push, bsp
  std::vector<SourceRows> outgoing;                // [R] own rows for each owner
  std::vector<std::vector<std::uint32_t>> counts;  // [R] rows of each source by expert position
  std::vector<std::uint32_t> first_entry;          // [R] of this rank at each source
  // relay
  HostTokens host_tokens;
  std::uint8_t relay_shift = 0;
  std::vector<RelayedRows> relayed;  // [R] of sources that this rank is the gateway of
};

// One dispatch of several that make a layer; all 0 of one that is alone.
struct LayerRound {
  std::uint32_t number = 0;  // from 1
  bool more = false;         // this rank has tokens left
};

namespace detail {

struct HandleState {
  enum State : std::uint64_t { idle, pending, complete };

  std::shared_ptr<Routed> routed = std::make_shared<Routed>();
  std::uint64_t epoch = 0;
  int hidden = 0;
  DType dtype = DType::bf16;
  Store store = Store::far;  // from dispatch to combine

  // Lease.
  bool leased = false;
  int slot = 0;
  RowEncoder encoder;   // of the caller's rows, where they do not travel as they are
  ConstRows x;          // sent rows; encoded ones are rows of bytes
  Rows out;             // the caller's place for received rows,
  bool in_out = false;  //   and whether they are there
  RankSet sources;      // ranks whose rows arrived
  Received received;
  Rows output;
  std::vector<const std::byte*> row_table;
  std::vector<std::int32_t> topk_idx;  // of all rows of `out`
  std::vector<float> topk_weights;
  std::vector<std::int32_t> mapped_idx;
  std::vector<float> mapped_weights;
  std::vector<float> row_weights;
  std::vector<std::int32_t> row_choices;

  // run_layer(): the round under way, whether some rank has more, and what rounds before said.
  LayerRound round;
  bool any_more = false;
  struct Layer {
    bool active = false;
    bool combining = false;
    const void* x = nullptr;  // what it was given
    const void* out = nullptr;
    std::int64_t tokens = 0;
    std::int64_t done = 0;  // tokens
    std::uint32_t rounds = 0;
    Status status;
    std::vector<std::uint8_t> valid;
  };
  Layer layer;

  // by_expert: the views are there, and which local experts have their rows.
  LaneWord shown;
  LaneFlags experts;

  // Latest operation. `status` is read once `state` is complete.
  OpKind kind = OpKind::none;
  Op* op = nullptr;  // once it is complete, perhaps somebody else's
  LaneWord state;
  Status status;
  std::vector<std::uint8_t> valid;
  OperationStats stats;

  bool publishes = false;  // a combine by expert

  std::weak_ptr<Engine> engine;  // of the lease
  int generation = 0;            // of forks, when the lease began
};

}  // namespace detail

using detail::HandleState;

}  // namespace ubep
