// ubep_rivals: one shape, all ways, interleaved; the result as JSON. Forks its ranks, or is one of
// those that a launcher started. scripts/bench-rivals runs it over many shapes and makes the table.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <new>

#include "bench/rivals/harness.hpp"
#include "bench/rivals/ways.hpp"
#include "tools/ubep/exit_code.hpp"
#include "tools/ubep/forked.hpp"
#include "tools/ubep/input_error.hpp"
#include "tools/ubep/launched.hpp"
#include "tools/ubep/numbers.hpp"
#include "ubep/ubep.hpp"

namespace ubep::rivals {
namespace {

struct Options {
  int ranks = 2;
  std::string tokens = "32";
  int hidden = 2048;
  int topk = 8;
  int experts = 128;
  std::string routing = "uniform";
  std::uint64_t seed = 1;
  std::string only;
  Plan plan;
};

void add_options(CLI::App& app, Options& o) {
  app.add_option("--ranks", o.ranks, "Processes, unless a launcher started them")
      ->check(CLI::Range(2, tools::kMaxStageRanks));
  app.add_option("--tokens", o.tokens, "Of each rank: a number, or one per rank");
  app.add_option("--hidden", o.hidden)->check(CLI::Range(32, 65536));
  app.add_option("--topk", o.topk)->check(CLI::Range(1, 64));
  app.add_option("--experts", o.experts)->check(CLI::Range(1, 65535));
  app.add_option("--routing", o.routing, "As in ubep bench");
  app.add_option("--seed", o.seed);
  app.add_option("--rounds", o.plan.rounds)->check(CLI::Range(1, 1000));
  app.add_option("--block-ms", o.plan.block_ms)->check(CLI::Range(0.1, 10000.0));
  app.add_option("--block-iters", o.plan.block_iters, "Instead, where ranks are on several hosts")
      ->check(CLI::Range(4, 64));
  app.add_flag("--fixed", o.plan.fixed_choices, "Also the library's fixed paths and stores");
  app.add_option("--only", o.only, "Ways whose names begin so, separated by commas");
  app.add_option("--json", o.plan.json, "The result's file")->required();
}

// Rivals by hand have one place for each (expert, token).
void refuse_repeated_experts(const std::vector<tools::RankRouting>& set, std::size_t topk) {
  for (const tools::RankRouting& routing : set) {
    for (std::size_t first = 0; first < routing.topk_idx.size(); first += topk) {
      std::vector<std::int32_t> token(&routing.topk_idx[first], &routing.topk_idx[first] + topk);
      std::sort(token.begin(), token.end());
      const auto same = [](std::int32_t a, std::int32_t b) { return a == b && a >= 0; };
      if (std::adjacent_find(token.begin(), token.end(), same) == token.end()) continue;
      throw tools::InputError("--routing: a token names an expert twice, which rivals cannot take");
    }
  }
}

void resolve(Options& o) {
  if (o.ranks < 2) throw tools::InputError("expected at least 2 ranks");
  if (o.plan.json == "-") throw tools::InputError("--json: expected the name of a file");
  if (o.hidden % 32 != 0) throw tools::InputError("--hidden: expected a multiple of 32");
  Plan& plan = o.plan;
  plan.shape.tokens = tools::parse_numbers(o.tokens, "--tokens", 0, 1 << 20);
  if (plan.shape.tokens.size() == 1) {
    plan.shape.tokens.resize(static_cast<std::size_t>(o.ranks), plan.shape.tokens[0]);
  }
  if (plan.shape.ranks() != o.ranks) {
    throw tools::InputError(fmt::format("--tokens has {} numbers, but there are {} ranks",
                                        plan.shape.ranks(), o.ranks));
  }
  if (o.experts < o.ranks) throw tools::InputError("--experts: expected at least one per rank");
  plan.shape.hidden = o.hidden;
  plan.shape.topk = o.topk;
  plan.shape.expert_rank = tools::block_map(o.experts, o.ranks);
  if (!o.only.empty()) plan.only = tools::split(o.only, ',');
  const std::size_t set_bytes =
      static_cast<std::size_t>(std::max(plan.shape.max_tokens(), 1)) * plan.shape.row_bytes();
  const std::size_t sets = std::clamp<std::size_t>((std::size_t{32} << 20) / set_bytes, 2, 8);
  for (std::size_t set = 0; set < sets; ++set) {
    plan.routing.push_back(tools::make_routing(o.routing, {.num_tokens = plan.shape.tokens,
                                                           .topk = o.topk,
                                                           .experts = o.experts,
                                                           .seed = o.seed,
                                                           .set = set}));
    refuse_repeated_experts(plan.routing.back(), static_cast<std::size_t>(o.topk));
  }
}

std::byte* map_shared(int fd, std::size_t bytes) {
  void* area = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  close(fd);
  if (area == MAP_FAILED) throw std::bad_alloc();
  return static_cast<std::byte*>(area);
}

int run_forked(const Options& o) {
  const std::size_t bytes = shared_bytes(o.plan.shape);
  const int fd = memfd_create("rivals", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(bytes)) != 0) throw std::bad_alloc();
  std::byte* shared = map_shared(fd, bytes);
  tools::SharedStage stage(o.ranks, stage_doubles());
  return tools::run_on_stage(stage, o.ranks, "ubep_rivals", [&](const Bootstrap& bootstrap) {
    return run_rank(bootstrap, o.plan, stage, shared, bytes);
  });
}

int run_launched(const Options& o) {
  Bootstrap bootstrap = Bootstrap::from_environment();
  const std::string job = bootstrap.job;
  bootstrap.job = job + "/stage";
  const auto owned = tools::make_stage(bootstrap, stage_doubles());
  tools::Stage& stage = *owned;
  std::byte* shared = nullptr;
  std::size_t bytes = 0;
  if (stage.hosts() == nullptr) {
    bootstrap.job = job + "/rows";
    bytes = shared_bytes(o.plan.shape);
    shared = map_shared(tools::shared_file(bootstrap, bytes), bytes);
  }
  bootstrap.job = job + "/ways";
  (void)run_rank(bootstrap, o.plan, stage, shared, bytes);
  if (stage.hosts() == nullptr ? !stage.failed() : stage.gather(bootstrap.rank)) return tools::kOk;
  tools::print_once([&] { fmt::print(stderr, "ubep_rivals: {}\n", stage.text()); });
  return stage.exit_code();
}

}  // namespace

int run(int argc, char** argv) {
  CLI::App app("One shape of the MoE layer: UBEP and its rivals, interleaved");
  Options options;
  add_options(app, options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? tools::kOk : tools::kUsage;
  }
  try {
    if (tools::under_launcher()) tools::take_world(app, options.ranks);
    resolve(options);
    return tools::under_launcher() ? run_launched(options) : run_forked(options);
  } catch (const std::exception& error) {
    tools::print_once([&] { fmt::print(stderr, "ubep_rivals: {}\n", error.what()); });
    return tools::kUsage;
  }
}

}  // namespace ubep::rivals

int main(int argc, char** argv) { return ubep::rivals::run(argc, argv); }
