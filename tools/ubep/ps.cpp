#include "tools/ubep/ps.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>

#include "tools/ubep/exit_code.hpp"
#include "ubep/ubep.hpp"

namespace ubep::tools {
namespace {

using Ranks = std::span<const RankReport>;

constexpr double kNotLooking = 1000;  // ms

bool waits_for(const RankReport& rank, int peer) {
  if (rank.wait.ok()) return false;
  return rank.wait.peer == peer || (peer < 64 && (rank.wait.missing >> peer & 1) != 0);
}

// Its deadline passed, or it has been without a CPU for long.
bool has_left_the_call(const RankReport& rank) {
  return rank.looked_ms > kNotLooking && rank.process != "stopped";
}

std::string wait_text(const RankReport& rank) {
  if (rank.wait.ok()) return "-";
  std::string text = fmt::format("{:.1f} s: {}", rank.waited_ms / 1e3,
                                 rank.wait.peer < 0 ? rank.wait_for : rank.wait.awaited());
  if (rank.wait.peer >= 0 && has_left_the_call(rank)) {
    text += fmt::format(" (left the call {:.1f} s ago)", rank.looked_ms / 1e3);
  }
  return text;
}

std::string process_text(const RankReport& rank) {
  if (!rank.alive) return rank.state;
  if (rank.state == "failed" || rank.state == "left") return rank.state;
  return rank.process.empty() ? "live" : rank.process;
}

std::string operation_text(const RankReport& rank) {
  if (rank.operations == 0) return "none yet";
  return fmt::format("{} {} (epoch {}), {}", name(rank.kind), rank.operations, rank.epoch,
                     rank.stage);
}

// Calls body(ranks) for each group.
template <class Body>
void for_each_group(Ranks ranks, Body body) {
  for (std::size_t begin = 0; begin < ranks.size();) {
    std::size_t end = begin;
    while (end < ranks.size() && ranks[end].group == ranks[begin].group) ++end;
    body(ranks.subspan(begin, end - begin));
    begin = end;
  }
}

std::vector<int> unseen_ranks(Ranks group) {
  std::vector<int> unseen;
  for (int r = 0; r < group[0].size; ++r) {
    const bool seen = std::any_of(group.begin(), group.end(),
                                  [&](const RankReport& rank) { return rank.rank == r; });
    if (!seen) unseen.push_back(r);
  }
  return unseen;
}

std::string wait_list(const std::vector<int>& ranks) {
  return ranks.size() == 1 ? fmt::format("rank {} waits", ranks[0])
                           : fmt::format("ranks {} wait", fmt::join(ranks, ", "));
}

nlohmann::ordered_json json_of(const RankReport& rank) {
  nlohmann::ordered_json one{{"rank", rank.rank},       {"pid", rank.pid},
                             {"alive", rank.alive},     {"state", rank.state},
                             {"process", rank.process}, {"command", rank.command},
                             {"operation", nullptr},    {"wait", nullptr}};
  if (rank.operations > 0) {
    one["operation"] = {{"kind", name(rank.kind)},
                        {"number", rank.operations},
                        {"epoch", rank.epoch},
                        {"stage", rank.stage}};
  }
  const Status& wait = rank.wait;
  if (wait.ok()) return one;
  nlohmann::ordered_json text{{"for_ms", rank.waited_ms}, {"looked_ms", rank.looked_ms},
                              {"code", name(wait.code)},  {"kind", name(wait.kind)},
                              {"epoch", wait.epoch},      {"text", rank.wait_for},
                              {"peer", nullptr}};
  if (wait.peer >= 0) {
    std::vector<int> missing;
    for (int r = 0; r < 64; ++r) {
      if ((wait.missing >> r & 1) != 0) missing.push_back(r);
    }
    text["peer"] = wait.peer;
    text["missing"] = missing;
    text["word"] = name(wait.word);
    text["seen"] = wait.seen;
    text["expected"] = wait.expected;
    text["rows"] = wait.rows;
    text["tokens"] = {wait.first_token, wait.last_token};
    text["expert"] = wait.expert;
  }
  one["wait"] = std::move(text);
  return one;
}

}  // namespace

std::vector<std::size_t> find_culprits(Ranks ranks) {
  std::vector<std::size_t> culprits;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const bool awaited = std::any_of(ranks.begin(), ranks.end(), [&](const RankReport& other) {
      return other.rank != ranks[i].rank && waits_for(other, ranks[i].rank);
    });
    const bool waits_itself = !ranks[i].wait.ok() && ranks[i].wait.peer >= 0 && ranks[i].alive &&
                              ranks[i].process != "stopped" && !has_left_the_call(ranks[i]);
    if (awaited && !waits_itself) culprits.push_back(i);
  }
  return culprits;
}

std::string verdict(Ranks ranks) {
  std::vector<int> waiting;
  for (const RankReport& rank : ranks) {
    if (!rank.wait.ok() && rank.wait.peer >= 0) waiting.push_back(rank.rank);
  }
  if (waiting.empty()) return {};
  const std::vector<std::size_t> culprits = find_culprits(ranks);
  if (culprits.empty()) {
    return wait_list(waiting) +
           " for one another: do all start their operations in the same order?";
  }
  std::string text;
  for (std::size_t i : culprits) {
    const RankReport& rank = ranks[i];
    std::erase(waiting, rank.rank);
    if (!text.empty()) text += "\n";
    text += fmt::format("rank {} (process {}, {}) is waited for: {}", rank.rank, rank.pid,
                        process_text(rank), operation_text(rank));
    if (!rank.wait.ok()) text += fmt::format("; {}", wait_text(rank));
  }
  if (waiting.empty()) return text;
  return text + "\n" + wait_list(waiting);
}

std::string ps_text(Ranks ranks) {
  std::string text;
  for_each_group(ranks, [&](Ranks group) {
    if (!text.empty()) text += "\n";
    text += fmt::format("job '{}', {} ranks, group {:x}\n", group[0].job, group[0].size,
                        group[0].group >> 48);
    std::size_t width = 9;
    for (const RankReport& rank : group) width = std::max(width, operation_text(rank).size());
    text += fmt::format("{:>4}  {:>8}  {:<13}  {:<{}}  {}\n", "rank", "process", "", "operation",
                        width, "waits for");
    for (const RankReport& rank : group) {
      text += fmt::format("{:>4}  {:>8}  {:<13}  {:<{}}  {}\n", rank.rank, rank.pid,
                          process_text(rank), operation_text(rank), width, wait_text(rank));
    }
    const std::vector<int> unseen = unseen_ranks(group);
    if (!unseen.empty()) {
      text += fmt::format("not seen (no members, gone, or not to be looked at): {}\n",
                          fmt::join(unseen, ", "));
    }
    const std::string who = verdict(group);
    if (!who.empty()) text += who + "\n";
  });
  return text;
}

std::string ps_json(Ranks ranks) {
  nlohmann::ordered_json all{{"schema", "ubep-ps/1"}, {"groups", nlohmann::ordered_json::array()}};
  for_each_group(ranks, [&](Ranks group) {
    nlohmann::ordered_json one{{"job", group[0].job},
                               {"group", fmt::format("{:016x}", group[0].group)},
                               {"size", group[0].size},
                               {"slots", group[0].slots},
                               {"held_up_by", nlohmann::ordered_json::array()},
                               {"ranks", nlohmann::ordered_json::array()}};
    for (std::size_t i : find_culprits(group)) one["held_up_by"].push_back(group[i].rank);
    for (const RankReport& rank : group) one["ranks"].push_back(json_of(rank));
    all["groups"].push_back(std::move(one));
  });
  return all.dump(2) + "\n";
}

void add_ps_options(CLI::App& app, PsOptions& options) {
  app.add_flag("--json", options.json, "print JSON (schema ubep-ps/1)");
  app.add_option("--job", options.job, "only jobs whose name contains this");
}

int run_ps(const PsOptions& options) {
  std::vector<RankReport> ranks = inspect_ranks();
  std::erase_if(ranks, [&](const RankReport& rank) {
    return rank.job.find(options.job) == std::string::npos;
  });
  if (options.json) {
    fmt::print("{}", ps_json(ranks));
  } else if (ranks.empty()) {
    fmt::print("no ranks that this user may look at\n");
  } else {
    fmt::print("{}", ps_text(ranks));
  }
  return kOk;
}

}  // namespace ubep::tools
