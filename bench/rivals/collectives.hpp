// The two ways that any package of collectives over host memory allows: all-to-all of rows, and
// all-gather with reduce-scatter.
//
// Purpose: a package's adapter is a Collectives and one line in packages.cpp. Not for: packages
// with windows or one-sided operations (mpi.cpp).
#pragma once

#include <memory>
#include <string>

#include "bench/rivals/rows.hpp"
#include "bench/rivals/way.hpp"

namespace ubep::rivals {

// What a package offers. Blocks lie back to back in rank order; `own` is this rank's.
class Collectives {
 public:
  virtual ~Collectives() = default;
  virtual std::string name() const = 0;
  virtual std::string all_to_all_text() const = 0;
  virtual std::string gather_text() const = 0;
  // Of a sum of reduce_scatter(), as WayInfo::tolerance.
  virtual double tolerance() const = 0;
  // Whether all_gather() takes blocks of one size only.
  virtual bool even() const = 0;
  virtual void all_to_all(std::byte* send, const std::vector<std::size_t>& send_bytes,
                          std::byte* receive, const std::vector<std::size_t>& receive_bytes) = 0;
  virtual void all_gather(std::byte* own, std::byte* all,
                          const std::vector<std::size_t>& bytes) = 0;
  // Adds blocks of bf16 `elements`. Returns where the sums of this rank's block are: in `own`, or
  // in `blocks`, which may be overwritten.
  virtual const std::byte* reduce_scatter(std::byte* blocks, std::byte* own,
                                          std::size_t elements) = 0;
};

// Something that rank 0 tells the others before there is a collective.
class Notice {
 public:
  Notice(Group& group, std::size_t bytes)
      : rank_(group.rank()), area_(group.allocate(bytes)), written_(group) {}
  void write(const void* from, std::size_t bytes) const;
  void read(void* to, std::size_t bytes) const;

 private:
  int rank_;
  std::byte* area_;
  Flags written_;
};

// Both ways over one package.
void add_collectives(std::vector<NamedWay>& ways, const Group& group, const Shape& shape,
                     const std::shared_ptr<Collectives>& collectives);

}  // namespace ubep::rivals
