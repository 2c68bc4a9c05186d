// Which ranks share a host: runs of ranks one behind the other.
//
// Ranks of one host whose numbers are apart count as several hosts: that costs copies, never bits.
#pragma once

#include <cstddef>
#include <vector>

namespace ubep {

class HostMap {
 public:
  HostMap() = default;
  // All on one.
  explicit HostMap(int ranks) : HostMap(std::vector<int>(static_cast<std::size_t>(ranks))) {}
  // host_of: [R] any number that ranks of one host have alike.
  explicit HostMap(const std::vector<int>& host_of) {
    for (std::size_t r = 0; r < host_of.size(); ++r) {
      if (r == 0 || host_of[r] != host_of[r - 1]) begin_.push_back(static_cast<int>(r));
      host_.push_back(static_cast<int>(begin_.size()) - 1);
    }
    begin_.push_back(static_cast<int>(host_of.size()));
  }

  bool empty() const { return begin_.empty(); }
  int num_hosts() const { return static_cast<int>(begin_.size()) - 1; }
  int host_of(int rank) const { return host_[static_cast<std::size_t>(rank)]; }
  bool same(int a, int b) const { return host_of(a) == host_of(b); }
  // Ranks [first, end) are on that host.
  int first(int host) const { return begin_[static_cast<std::size_t>(host)]; }
  int end(int host) const { return begin_[static_cast<std::size_t>(host) + 1]; }

  // The rank of `host` that takes what `source`, of another host, has for its ranks: that with the
  // same place there, `shift` places on.
  int gateway(int source, int host, int shift) const {
    const int place = source - first(host_of(source)) + shift;
    return first(host) + place % (end(host) - first(host));
  }

 private:
  std::vector<int> host_;   // [R]
  std::vector<int> begin_;  // [hosts + 1]
};

}  // namespace ubep
