#include "bench/rivals/ubep_way.hpp"

#include "tools/ubep/exit_code.hpp"
#include "tools/ubep/stand_in.hpp"

namespace ubep::rivals {

std::shared_ptr<Communicator> make_communicator(const Group& group, const Shape& shape,
                                                Store store) {
  CommunicatorOptions options;
  options.num_experts = static_cast<int>(shape.expert_rank.size());
  options.expert_rank = shape.expert_rank;
  options.max_tokens = shape.max_tokens();
  options.max_hidden = shape.hidden;
  options.max_topk = shape.topk;
  options.store = store;
  return std::make_shared<Communicator>(Communicator::create(group.bootstrap(), options));
}

UbepWay::UbepWay(const Group& group, const Shape& shape, std::shared_ptr<Communicator> comm,
                 const UbepChoice& choice)
    : stage_(&group.stage()),
      comm_(std::move(comm)),
      choice_(choice),
      topk_(shape.topk),
      x_(static_cast<std::size_t>(shape.max_tokens()), shape.row_bytes()) {
  for (std::size_t e = 0; e < shape.expert_rank.size(); ++e) {
    if (shape.expert_rank[e] != group.rank()) continue;
    scale_.push_back(tools::expert_scale(static_cast<std::int32_t>(e)));
  }
  input_ = x_.view(shape.tokens[static_cast<std::size_t>(group.rank())]);
}

Rows UbepWay::input() {
  if (!choice_.in_input) return input_;
  const Rows wanted = input_;
  Status status;
  while ((status = comm_->input(wanted.num_rows, wanted.hidden, wanted.dtype, input_)).code ==
         Code::not_ready) {
    if (stage_->failed()) throw std::runtime_error("another rank failed");
    if (comm_->step() == 0) sched_yield();
  }
  tools::must(status);
  return input_;
}

void UbepWay::dispatch(const tools::RankRouting& routing) {
  const bool owner = choice_.layout == Layout::rank_major;
  tools::must(comm_->dispatch(input_, {routing.topk_idx, routing.topk_weights, topk_},
                              {.layout = choice_.layout,
                               .path = choice_.path,
                               .weighting = owner ? Weighting::owner : Weighting::kernel},
                              handle_));
}

void UbepWay::experts() {
  const Received& received = handle_.received();
  const Rows output = handle_.expert_output();
  const auto hidden = static_cast<std::size_t>(received.hidden);
  const bool by_expert = is_by_expert(received.layout);
  for (std::size_t e = 0; e < scale_.size(); ++e) {
    const std::int32_t first = received.expert_offsets[e];
    for (std::int32_t i = first; i < first + received.expert_counts[e]; ++i) {
      const std::int64_t row = by_expert ? i : received.expert_rows[static_cast<std::size_t>(i)];
      run_expert(scale_[e], received.row(row), hidden, output.row(i));
    }
  }
}

void UbepWay::combine(const Rows& out) { tools::must(comm_->combine(handle_, {.out = out})); }

}  // namespace ubep::rivals
