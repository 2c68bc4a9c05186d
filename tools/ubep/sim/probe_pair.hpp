// Two ranks on two CPUs that measure together: what they share, and words passed to and fro.
//
// Purpose: times of this machine's parts that need two processes, for `ubep probe`. Not for moving
// tokens; each number is of one part alone.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "tools/ubep/stage.hpp"
#include "ubep/types.hpp"

namespace ubep::tools {

// Memory that processes forked later share; zeroes.
class SharedBytes {
 public:
  explicit SharedBytes(std::size_t bytes);
  ~SharedBytes();
  SharedBytes(const SharedBytes&) = delete;
  SharedBytes& operator=(const SharedBytes&) = delete;
  std::byte* data() const { return data_; }

 private:
  std::size_t bytes_;
  std::byte* data_;
};

// The calling thread stays on the `index`-th CPU of its process. Throws InputError.
void pin_to(int index);

// Seconds that a look at the clock takes.
double clock_cost();

// In seconds; of each its median.
struct WordTimes {
  double one_way = 0;  // a word, from its store until the other CPU has seen it
  double line = 0;     // so much longer for each line of others that must be read after it
  double store = 0;    // a store of a word, seen by its own CPU only
  double look = 0;     // a look at a word that has not changed
  double fence = 0;    // a line that is stored for peers, and its ordering
};

// What both ranks do at the same time; lines are stored by `store`. Words lie in `page`, kWordBytes
// of shared zeroes.
inline constexpr std::size_t kWordBytes = 4096;
WordTimes measure_words(Stage& stage, int rank, Store store, std::byte* page);

}  // namespace ubep::tools
