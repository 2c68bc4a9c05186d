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
inline constexpr std::uint64_t kTileBytes = 128 * 1024;  // below it a second lane does not pay
// Up to here an operation's start stores own rows itself, so that peers depend on no later call.
inline constexpr std::uint64_t kStartBytes = 1 << 20;

inline std::uint32_t tiles_for(std::uint64_t bytes, std::uint32_t most) {
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(1 + bytes / kTileBytes, most));
}

struct Op {
  explicit Op(int ranks)
      : send(kTilesForAll + tiles(ranks)), receive(kTilesForAll + tiles(ranks)) {}
  static std::size_t tiles(int ranks) { return static_cast<std::size_t>(ranks) * kTilesPerPeer; }

  OpLine line = {};  // mine; kind none = this place is free
  HandleState* handle = nullptr;
  bool cached = false;
  Status status;

  TileBoard send;     // own rows or outputs into the segment
  TileBoard receive;  // peers' rows out of theirs
  bool sent = false;
  bool placed = false;

  std::uint64_t waiting = 0;  // bit q: rank q is still awaited
  std::uint64_t absent = 0;   // bit q: rank q was lost before it took part
  enum Stage : std::uint8_t { kOpLine, kAnnouncement, kRecordHead, kRecord };
  std::array<Stage, kMaxRanks> stage = {};
  std::array<std::array<std::uint32_t, 2>, kMaxRanks> span = {};  // dispatch: entries for me
  std::array<OpLine, kMaxRanks> theirs = {};

  // Combine.
  CombineArgs args;
  ConstRows own_y;                   // own rows, by output row
  LaneWord lost;                     // `absent`, for the lanes
  LaneWord ready;                    // bit q: rank q's outputs can be reduced
  std::vector<std::uint32_t> bases;  // per peer `groups_of(q)` bases, one behind the other
  std::array<std::uint32_t, kMaxRanks + 1> first_base = {};
};

struct Slot {
  bool leased = false;
  bool combining = false;  // the lease ends by itself once peers have done their part
  PrivateRows x;           // far: what input() hands out
  PrivateRows rows;        // pull: received rows; owner weighting: own sums
  PrivateRows y;           // outputs that do not lie in the segment
};

}  // namespace ubep
