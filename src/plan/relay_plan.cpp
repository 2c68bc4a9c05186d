#include "plan/relay_plan.hpp"

#include <algorithm>

namespace ubep {

void list_host_tokens(const SendPlan& plan, const HostMap& hosts, int self, HostTokens& out) {
  const auto num_hosts = static_cast<std::size_t>(hosts.num_hosts());
  out.tokens.resize(num_hosts);
  out.place.resize(num_hosts);
  for (std::size_t h = 0; h < num_hosts; ++h) {
    out.tokens[h].clear();
    out.place[h].resize(plan.num_tokens);
  }
  for (std::uint32_t token = 0; token < plan.num_tokens; ++token) {
    for (std::uint32_t i = plan.ref_begin[token]; i < plan.ref_begin[token + 1]; ++i) {
      const int rank = plan.refs[i].rank;
      if (rank == self) continue;
      const auto h = static_cast<std::size_t>(hosts.host_of(rank));
      std::vector<std::uint32_t>& tokens = out.tokens[h];
      if (!tokens.empty() && tokens.back() == token) continue;
      out.place[h][token] = static_cast<std::uint32_t>(tokens.size());
      tokens.push_back(token);
    }
  }
}

void list_relayed_rows(std::span<const Entry> entries, std::span<const std::uint32_t> off,
                       int first_rank, RelayedRows& out) {
  struct Row {
    std::uint32_t token;
    RowRef ref;
  };
  std::vector<Row> rows;
  for (std::size_t r = 0; r + 1 < off.size(); ++r) {
    std::uint32_t index = 0;
    const auto mine = entries.subspan(off[r] - off[0], off[r + 1] - off[r]);
    for (std::size_t i = 0; i < mine.size(); ++i) {
      if (i != 0 && mine[i].token == mine[i - 1].token) continue;  // another k of the same row
      rows.push_back({mine[i].token,
                      {.index = index++,
                       .rank = static_cast<std::uint16_t>(first_rank + static_cast<int>(r)),
                       .group = 0}});
    }
  }
  std::stable_sort(rows.begin(), rows.end(),
                   [](const Row& a, const Row& b) { return a.token < b.token; });
  out.first = off.empty() ? 0 : off[0];
  out.begin.clear();
  out.rows.clear();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (i == 0 || rows[i].token != rows[i - 1].token) {
      out.begin.push_back(static_cast<std::uint32_t>(i));
    }
    out.rows.push_back(rows[i].ref);
  }
  out.begin.push_back(static_cast<std::uint32_t>(rows.size()));
}

void list_all_rows(std::pair<int, int> ranks, std::uint32_t tokens, RelayedRows& out) {
  out.begin.clear();
  out.rows.clear();
  for (std::uint32_t token = 0; token < tokens; ++token) {
    out.begin.push_back(static_cast<std::uint32_t>(out.rows.size()));
    for (int r = ranks.first; r < ranks.second; ++r) {
      out.rows.push_back({.index = token, .rank = static_cast<std::uint16_t>(r), .group = 0});
    }
  }
  out.begin.push_back(static_cast<std::uint32_t>(out.rows.size()));
}

}  // namespace ubep
