// Bulk work of one operation, cut into tiles that any lane may take.
//
// The control part adds tiles; lanes claim them, work as far as the fabric lets them, and either
// finish a tile or give it back where it stopped. A lane that never calls again holds nothing up.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "memory/word.hpp"

namespace ubep {

// An output row of a rank; rank -1 = none.
struct MissingRow {
  int rank = -1;
  std::uint64_t row = 0;
};

struct Tile {
  LaneWord state;  // kFree, kTaken, kDone
  std::uint32_t peer = 0;
  bool pushed = false;     // its rows are in the inbox
  std::uint32_t next = 0;  // first row that is still to do
  std::uint32_t end = 0;
  MissingRow missing;  // combine: what its next token waits for

  enum : std::uint64_t { kDone, kFree, kTaken };
};

class TileBoard {
 public:
  explicit TileBoard(std::size_t capacity) : tiles_(capacity) {}

  // Control part, while idle(): forget the finished tiles.
  void clear() {
    size_.store_release(0);  // publishes: nothing; lanes meet finished tiles only
  }

  // Control part: rows [0, rows) of `peer` in `tiles` tiles (fewer when there are fewer rows), each
  // of whole batches.
  void add(std::uint32_t peer, std::uint32_t rows, std::uint32_t tiles, bool pushed = false,
           std::uint32_t batch = 1) {
    if (rows == 0) return;
    const std::uint32_t batches = batch == 1 ? rows : (rows - 1) / batch + 1;
    tiles = std::min(tiles, batches);
    unfinished_.add_relaxed(tiles);
    // acquires: nothing; only the control part changes the size.
    std::uint64_t size = size_.load_acquire();
    for (std::uint32_t i = 0; i < tiles; ++i) {
      Tile& tile = tiles_.at(size++);
      tile.peer = peer;
      tile.pushed = pushed;
      tile.missing = {};
      tile.next = static_cast<std::uint32_t>(std::uint64_t{batches} * i / tiles) * batch;
      tile.end = static_cast<std::uint32_t>(std::uint64_t{batches} * (i + 1) / tiles) * batch;
      tile.end = std::min(tile.end, rows);
      // publishes: the tile's fields and all that the operation prepared, to the lane that claims
      // it; otherwise it would copy by a half-written plan.
      tile.state.store_release(Tile::kFree);
    }
    size_.store_release(size);  // publishes: that lanes should look this far
  }

  // Control part. acquires: the stores of all lanes that finished tiles; without it a flag could be
  // raised over rows that another lane has not stored yet.
  bool idle() const { return unfinished_.load_acquire() == 0; }

  // Any lane: whether a tile is free now. Those that lanes gave back wait for something.
  bool has_free() const {
    if (idle()) return false;
    const std::uint64_t size = size_.load_acquire();  // acquires: as in run()
    for (std::uint64_t i = 0; i < size; ++i) {
      // acquires: nothing; only the state is looked at.
      if (tiles_[i].state.load_acquire() == Tile::kFree) return true;
    }
    return false;
  }

  // Control part: takes every free tile off the board undone. Tiles that a lane holds stay.
  void drop() {
    (void)run([](Tile& tile) {
      tile.next = tile.end;
      return 0;
    });
  }

  // Any lane: runs `work(tile) -> rows done` on each free tile. Returns the rows done.
  template <class F>
  int run(F&& work) {
    if (idle()) return 0;
    int done = 0;
    // acquires: how far to look; a stale size only means that this lane helps one call later.
    const std::uint64_t size = size_.load_acquire();
    for (std::uint64_t i = 0; i < size; ++i) {
      Tile& tile = tiles_[i];
      // claims: the tile from add() or from the lane that gave it back, with the rows it did.
      if (!tile.state.try_claim(Tile::kFree, Tile::kTaken)) continue;
      done += work(tile);
      if (tile.next < tile.end) {
        // publishes: how far this lane came, to the next that claims the tile.
        tile.state.store_release(Tile::kFree);
        continue;
      }
      tile.state.store_release(Tile::kDone);  // publishes: nothing; the count below does
      // publishes: this lane's stores, to the control part's idle().
      unfinished_.subtract_acq_rel(1);
    }
    return done;
  }

 private:
  std::vector<Tile> tiles_;
  LaneWord size_;
  LaneWord unfinished_;
};

}  // namespace ubep
