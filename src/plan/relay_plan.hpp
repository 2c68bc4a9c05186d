// relay: one row per (token, host) between hosts. What a source sends, and what a gateway adds up
// for a source of another host.
//
// Pure, flat arrays, no pointers.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/entry.hpp"
#include "base/host_map.hpp"
#include "plan/send_plan.hpp"

namespace ubep {

// A source's tokens by host: those with rows on other ranks there.
struct HostTokens {
  std::vector<std::vector<std::uint32_t>> tokens;  // [hosts] ascending
  std::vector<std::vector<std::uint32_t>> place;   // [hosts][T] of a token in `tokens`
};
void list_host_tokens(const SendPlan& plan, const HostMap& hosts, int self, HostTokens& out);

// One source's rows on the ranks of one host, token by token (rank_major).
struct RelayedRows {
  std::uint32_t first = 0;           // place of the first sum in the source's inbox
  std::vector<std::uint32_t> begin;  // [tokens with rows here + 1] in `rows`
  std::vector<RowRef> rows;          // in rank order; `index` among the source's rows of that rank
  std::uint32_t num_tokens() const {
    return begin.empty() ? 0 : static_cast<std::uint32_t>(begin.size()) - 1;
  }
};
// entries: the source's for ranks first_rank, first_rank + 1, ...; off: [ranks + 1] where those of
// each begin, counted as in the source's record.
void list_relayed_rows(std::span<const Entry> entries, std::span<const std::uint32_t> off,
                       int first_rank, RelayedRows& out);

// The same where every token has a row on every rank: ranks [first, second), all of `tokens`.
void list_all_rows(std::pair<int, int> ranks, std::uint32_t tokens, RelayedRows& out);

}  // namespace ubep
