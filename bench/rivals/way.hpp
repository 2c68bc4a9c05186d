// One way of running the MoE layer between ranks: UBEP or a rival, under one contract.
//
// Purpose: the harness checks and times all of them alike. To add a rival: a class here, a line in
// ways.cpp. Not for: more than one layer in flight.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "bench/rivals/group.hpp"
#include "tools/ubep/routing_source.hpp"
#include "ubep/types.hpp"

namespace ubep::rivals {

// What a row of the table stands for.
enum class Kind {
  ubep,      // the library
  gather,    // all-gather and reduce-scatter: what serving engines do on CPUs
  window,    // shared memory of MPI, barriers
  messages,  // message passing
  direct,    // a hand-written prototype of direct placement
  floor,     // one rank's copies and sums in private memory, no second rank
};
std::string_view name(Kind kind);

class Way {
 public:
  virtual ~Way() = default;
  // Where this rank writes its activations for the next layer, [tokens, hidden] bf16.
  virtual Rows input() = 0;
  // Until the rows for this rank's experts can be read here.
  virtual void dispatch(const tools::RankRouting& routing) = 0;
  // Every expert reads each of its rows and writes one output row beside it.
  virtual void experts() = 0;
  // out [tokens, hidden]: the weighted sums of the outputs.
  virtual void combine(const Rows& out) = 0;
  // Sends on what is on its way to others, while this rank waits for something else.
  virtual void step() {}
};

struct WayInfo {
  std::string name;
  Kind kind = Kind::ubep;
  Layout layout = Layout::rank_major;
  std::string text;      // for the table's legend
  double tolerance = 0;  // of an element, over its row's largest; 0 = bit for bit
};

struct NamedWay {
  WayInfo info;
  std::unique_ptr<Way> way;
};

}  // namespace ubep::rivals
