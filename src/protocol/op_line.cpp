#include "protocol/op_line.hpp"

namespace ubep {

OpDifference compare(const OpLine& mine, const OpLine& theirs) {
  const auto differ = [](const char* field, auto a, auto b) {
    return OpDifference{field, static_cast<std::uint64_t>(a), static_cast<std::uint64_t>(b)};
  };
  if (mine.kind != theirs.kind) return differ("operation kind", mine.kind, theirs.kind);
  if (mine.epoch != theirs.epoch) return differ("epoch", mine.epoch, theirs.epoch);
  if (mine.origin != theirs.origin) return differ("origin", mine.origin, theirs.origin);
  if (mine.hidden != theirs.hidden) return differ("hidden", mine.hidden, theirs.hidden);
  if (mine.topk != theirs.topk) return differ("topk", mine.topk, theirs.topk);
  if (mine.dtype != theirs.dtype) return differ("dtype", mine.dtype, theirs.dtype);
  if (mine.layout != theirs.layout) return differ("layout", mine.layout, theirs.layout);
  if (mine.topk1 != theirs.topk1) return differ("topk1", mine.topk1, theirs.topk1);
  if (mine.reduction != theirs.reduction) {
    return differ("reduction", mine.reduction, theirs.reduction);
  }
  if (mine.view != theirs.view) return differ("view", mine.view, theirs.view);
  if (mine.map_version != theirs.map_version) {
    return differ("map_version", mine.map_version, theirs.map_version);
  }
  if (mine.layer != theirs.layer) return differ("layer", mine.layer, theirs.layer);
  if (mine.round != theirs.round) return differ("round", mine.round, theirs.round);
  return {};
}

OpDifference find_corruption(const OpLine& theirs, std::uint32_t max_tokens) {
  const auto beyond = [](const char* field, auto seen, std::uint64_t limit) {
    return OpDifference{field, limit, static_cast<std::uint64_t>(seen)};
  };
  if (theirs.kind != OpKind::dispatch && theirs.kind != OpKind::combine) {
    return beyond("operation kind", theirs.kind, static_cast<std::uint64_t>(OpKind::combine));
  }
  if (theirs.dtype > DType::fp32) return beyond("dtype", theirs.dtype, 2);
  if (theirs.layout > Layout::expert_major) return beyond("layout", theirs.layout, 1);
  if (theirs.reduction > Reduction::per_rank) return beyond("reduction", theirs.reduction, 2);
  if (theirs.topk1 > 1) return beyond("topk1", theirs.topk1, 1);
  if (theirs.tokens > max_tokens) return beyond("tokens", theirs.tokens, max_tokens);
  return {};
}

}  // namespace ubep
