#include "tools/ubep/bench_ablation.hpp"

#include <algorithm>
#include <utility>

namespace ubep::tools {
namespace {

// Over all lanes of all ranks; nothing when the library told nothing.
std::optional<Breakdown> spent(Stage& stage, const BenchPlan& plan, std::size_t v,
                               BenchNotes::Field phase) {
  bool told = true;
  double last_row = 0;
  Breakdown all = average(plan.tokens.size(), [&](std::size_t rank) {
    const double* notes = &stage.numbers(static_cast<int>(rank))[notes_at(v)];
    told = told && notes[BenchNotes::traced] > 0;
    std::array<double, kActivities> us;
    std::copy_n(notes + phase, us.size(), us.begin());
    last_row = std::max(last_row, notes[phase + kActivities + 1]);
    return std::pair(us, notes[phase + kActivities]);
  });
  all.last_row_max = last_row;
  return told ? std::optional(all) : std::nullopt;
}

}  // namespace

void plan_ablation(BenchPlan& plan) {
  plan.variants.clear();
  plan.adjusts.clear();
  const bool in_place = plan.options.activations == "in-place";
  for (const int lanes : plan.options.lanes_list) {
    for (const AblationStep& step : ablation_steps()) {
      auto at = std::find(plan.adjusts.begin(), plan.adjusts.end(), step.adjust);
      if (at == plan.adjusts.end()) at = plan.adjusts.insert(at, step.adjust);
      // bsp has phases instead: a lane does what there is to do.
      const Roles roles = step.path == Path::bsp ? Roles{} : plan.options.roles_value;
      plan.variants.push_back(
          {.path = {.path = step.path, .layout = Layout::expert_major, .text = step.name},
           .in_place = in_place,
           .lanes = lanes,
           .roles = roles,
           .order = step.order,
           .communicator = static_cast<std::size_t>(at - plan.adjusts.begin())});
    }
  }
}

std::vector<AblationEntry> collect_ablation(Stage& stage, const BenchPlan& plan,
                                            const std::vector<PathResult>& paths) {
  std::vector<AblationEntry> entries;
  const std::vector<AblationStep>& steps = ablation_steps();
  for (std::size_t v = 0; v < plan.variants.size(); ++v) {
    const AblationStep& step = steps[v % steps.size()];
    const PathResult& path = paths[v];
    AblationEntry e;
    e.step = step.name;
    e.first = v - v % steps.size();
    e.on = e.first + step.on;
    e.lanes = plan.variants[v].lanes;
    e.path = path.path;
    e.store = path.store;
    if (path.roles) e.roles = *path.roles;
    if (path.copies) e.dispatch_copies = path.copies->dispatch;
    if (path.copies) e.combine_copies = path.copies->combine;
    e.us = {path.dispatch->us, path.combine->us, path.round_trip->us, path.cycle->us};
    e.blocks = (plan.options.iters + kBlock - 1) / kBlock;
    const auto dispatch = spent(stage, plan, v, BenchNotes::dispatch_spent);
    const auto combine = spent(stage, plan, v, BenchNotes::combine_spent);
    if (dispatch && combine) e.spent = {*dispatch, *combine};
    entries.push_back(std::move(e));
  }
  return entries;
}

}  // namespace ubep::tools
