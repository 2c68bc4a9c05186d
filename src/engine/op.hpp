// One started operation of an engine, and the slot it works in.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "base/group_config.hpp"
#include "engine/handle_state.hpp"
#include "engine/tile_board.hpp"
#include "memory/private_rows.hpp"
#include "protocol/op_line.hpp"
#include "ubep/combine.hpp"

namespace ubep {

// Tiles per peer at most, and for work that is not per peer.
inline constexpr std::uint32_t kTilesPerPeer = 4;
inline constexpr std::uint32_t kTilesForAll = 16;

// Rows of one source beyond which their receiver stores them past its caches.
inline constexpr std::uint64_t kCachedBytes = 4 << 20;

inline std::uint32_t tiles_for(std::uint64_t bytes, std::uint64_t tile, std::uint32_t most) {
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(1 + bytes / tile, most));
}

struct Op {
  explicit Op(int ranks)
      : send(kTilesForAll + tiles(ranks)), receive(kTilesForAll + tiles(ranks)) {}
  static std::size_t tiles(int ranks) { return static_cast<std::size_t>(ranks) * kTilesPerPeer; }

  OpLine line = {};  // mine; kind none = this place is free
  HandleState* handle = nullptr;
  bool cached = false;
  Status status;

  TileBoard send;          // own rows or outputs into the segment
  TileBoard receive;       // peers' rows out of theirs
  bool announced = false;  // pub or out is stored
  bool sent = false;       // and nothing of mine is left to store
  bool placed = false;
  LaneWord copied;  // payload bytes, by all lanes

  std::uint64_t waiting = 0;  // bit q: rank q is still awaited
  std::uint64_t absent = 0;   // bit q: rank q was lost before it took part
  enum Stage : std::uint8_t { kOpLine, kAnnouncement, kRecordHead, kRecord, kCounts };
  std::array<Stage, kMaxRanks> stage = {};
  std::array<std::array<std::uint32_t, 2>, kMaxRanks> span = {};  // dispatch: entries for me
  std::array<OpLine, kMaxRanks> theirs = {};

  // Rows that sources put into inboxes (push, bsp). Bits are ranks.
  std::uint64_t unplaced = 0;            // owners whose base for my rows I do not know yet
  std::uint64_t pushers = 0;             // sources that put rows into my inbox,
  std::uint64_t coming = 0;              //   have not said that all are there,
  std::uint64_t unsent = 0;              //   or were lost before they could
  std::uint64_t copying = 0;             // sources whose rows are on the receive board
  std::array<LaneWord, kMaxRanks> left;  // rows still to be put into each owner's inbox

  // Combine; a dispatch that pushes keeps its bases here, too.
  CombineArgs args;
  ConstRows own_y;                   // own rows, by output row
  LaneWord lost;                     // `absent`, for the lanes
  LaneWord ready;                    // bit q: rank q's outputs can be reduced
  std::vector<std::uint32_t> bases;  // per owner one for each group, one behind the other
  std::array<std::uint32_t, kMaxRanks + 1> first_base = {};
};

struct Slot {
  bool leased = false;
  bool combining = false;  // the lease ends by itself once peers have done their part
  PrivateRows x;           // far: what input() hands out
  PrivateRows rows;        // received rows that do not lie in the inbox; owner weighting: own sums
  PrivateRows y;           // outputs that do not lie in the segment
};

}  // namespace ubep
