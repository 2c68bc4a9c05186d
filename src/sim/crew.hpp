// The lanes of one rank that step its engine: the first one starts and ends operations, the others
// help. Nothing but step() may run beside a start or an end, so the first lane calls the others in.
#pragma once

#include "engine/engine.hpp"
#include "sim/world.hpp"

namespace ubep::sim {

class Crew {
 public:
  Crew(World& world, int rank, Engine& engine) : world_(world), rank_(rank), engine_(engine) {}

  // Body of lane 1, 2, ...: until end().
  void help(int lane) {
    while (!over_) {
      const std::uint64_t before = world_.news(rank_);
      int done = 0;
      if (!called_in_) {
        ++inside_;
        done = engine_.step(lane, world_.options().lanes);
        --inside_;
      }
      if (done != 0) world_.stir(rank_);
      if (done == 0 && !over_) world_.wait_for_news(rank_, before);
    }
  }

  // Lane 0, around whatever is not step().
  void call_in() {
    called_in_ = true;
    world_.stir(rank_);
    while (inside_ != 0) world_.spend(kNanosecond);
  }
  void let_out() {
    called_in_ = false;
    world_.stir(rank_);
  }
  void end() {
    over_ = true;
    call_in();
  }

 private:
  World& world_;
  int rank_;
  Engine& engine_;
  bool over_ = false;
  bool called_in_ = false;
  int inside_ = 0;  // lanes in step()
};

}  // namespace ubep::sim
