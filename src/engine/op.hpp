// One started operation of an engine, and the slot it works in.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/rank_set.hpp"
#include "engine/handle_state.hpp"
#include "engine/tile_board.hpp"
#include "memory/lane_set.hpp"
#include "memory/private_rows.hpp"
#include "plan/schedule.hpp"
#include "protocol/op_line.hpp"
#include "ubep/combine.hpp"

namespace ubep {

// Tiles per peer at most, and for work that is not per peer.
inline constexpr std::uint32_t kTilesPerPeer = 4;
inline constexpr std::uint32_t kTilesForAll = kMaxLanes;

inline constexpr std::uint32_t kAllOwners = ~0U;  // Tile::peer of a slice of all owners' rows

// Rows of one source beyond which their receiver stores them past its caches.
inline constexpr std::uint64_t kCachedBytes = 4 << 20;

inline std::uint32_t tiles_for(std::uint64_t bytes, std::uint64_t tile, std::uint32_t most) {
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(1 + bytes / tile, most));
}

struct Op {
  explicit Op(int ranks)
      : send(kTilesForAll + tiles(ranks)),
        receive(kTilesForAll + tiles(ranks)),
        relay(tiles(ranks)),
        waiting(ranks),
        absent(ranks),
        stage(static_cast<std::size_t>(ranks)),
        span(static_cast<std::size_t>(ranks)),
        theirs(static_cast<std::size_t>(ranks)),
        unplaced(ranks),
        pushers(ranks),
        coming(ranks),
        unsent(ranks),
        decoding(ranks),
        relaying(ranks),
        summing(ranks),
        helpers(ranks),
        targets(ranks),
        copying(ranks),
        left(static_cast<std::size_t>(ranks)),
        marks(static_cast<std::size_t>(ranks)),
        early(ranks),
        first_base(static_cast<std::size_t>(ranks)) {}
  static std::size_t tiles(int ranks) { return static_cast<std::size_t>(ranks) * kTilesPerPeer; }

  OpLine line = {};  // mine; kind none = this place is free
  HandleState* handle = nullptr;
  std::size_t row_bytes = 0;  // of the rows that it moves: what a dispatch sends, or outputs
  std::uint64_t stride = 0;   //   and their distance, here and at peers
  bool cached = false;
  bool encoding = false;  // own rows are encoded; nothing else goes on
  Status status;

  TileBoard tell{kMaxLanes};   // peers to tell, in shares, where they cannot read what I say
  int tell_shares = 0;         // 0: not begun, or all is told at once
  TileBoard count{kMaxLanes};  // peers to hear, in shares, where several lanes count
  int shares = 1;
  bool recalled = false;  // one of the peers needs the control part: it takes the shares back,
  bool serial = false;    //   and hears the rest
  LaneSet heard;          // by shares
  LaneWord doubts;        // not 0: a share met what only the control part may judge

  TileBoard send;          // own rows or outputs into the segment
  TileBoard receive;       // peers' rows out of theirs
  TileBoard relay;         // sums for sources of other hosts
  bool published = false;  // the op line is
  bool announced = false;  // pub or out is stored
  bool sent = false;       // and nothing of mine is left to store
  bool placed = false;
  LaneWord copied;  // payload bytes, by all lanes

  // Lists by rank hold one element for each.
  RankSet waiting;  // ranks that are still awaited
  RankSet absent;   // ranks that were lost before they took part
  enum Stage : std::uint8_t { kOpLine, kAnnouncement, kRecordHead, kRecord, kCounts };
  std::vector<Stage> stage;
  std::vector<std::array<std::uint32_t, 2>> span;  // dispatch: entries for me
  std::vector<OpLine> theirs;

  // Rows that sources put into inboxes (push, bsp).
  RankSet unplaced;  // owners whose base for my rows I do not know yet
  RankSet pushers;   // sources that put rows into my inbox,
  RankSet coming;    //   have not said that all are there,
  RankSet unsent;    //   or were lost before they could
  RankSet decoding;  // ranks whose rows, or outputs, tell themselves that they are here
  // relay
  RankSet relaying;  // sources that I have still to serve as their gateway,
  RankSet summing;   //   and of a combine: whose sums are on the board
  RankSet helpers;   // combine: ranks of this host whose outputs only those sums need
  std::vector<std::uint32_t> sum_bases;  // [R x ranks of this host] where sources' rows begin
  // Slices: owners whose rows they hold, and the order.
  RankSet targets;
  Schedule schedule;
  bool is_by_expert = false;           // what the schedule was made for
  std::vector<std::uint32_t> rows_to;  // by its destinations

  bool by_expert = false;      // received rows are copied by expert
  RankSet copying;             // sources whose rows are on the receive board
  std::vector<LaneWord> left;  // rows still to be put into each owner's inbox

  std::vector<std::vector<std::uint64_t>> marks;  // rows that `sent` announces (SegmentLayout)

  // Combine; a dispatch that pushes keeps its bases here, too.
  CombineArgs args;
  ConstRows own_y;       // own rows, by output row
  LaneSet lost;          // `absent`, for the lanes; a dispatch: `unsent`
  LaneSet ready;         // ranks whose outputs can be reduced,
  RankSet early;         //   or those of experts that they have announced,
  LaneSet early_ready;   //   for the lanes
  LaneWord unpublished;  // local experts that publish() has still to announce
  LaneFlags published_experts;
  std::vector<std::uint32_t> bases;       // per owner one for each group, one behind the other
  std::vector<std::uint32_t> first_base;  // in `bases`, by rank
};

// What only this rank reads of a lease's rows.
struct PrivateArea {
  PrivateRows x;     // far: what input() hands out
  PrivateRows rows;  // received rows that do not lie in the inbox; owner weighting: own sums
  PrivateRows y;     // outputs that do not lie in the segment
};

struct Slot {
  bool leased = false;
  bool dirty = false;          // a dispatch was given up before all its rows were here
  bool back_dirty = false;     // outputs may have come that nobody took
  std::uint64_t scrubbed = 0;  // epoch after which older tags were wiped out; of outputs, too
  std::uint64_t back_scrubbed = 0;
  bool combining = false;       // the lease ends by itself once peers have done their part
  PrivateArea* area = nullptr;  // of the lease
};

}  // namespace ubep
