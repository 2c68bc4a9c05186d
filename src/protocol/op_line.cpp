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
  if (mine.quant != theirs.quant) return differ("quant", mine.quant, theirs.quant);
  if (mine.payload_bytes != theirs.payload_bytes) {
    return differ("payload bytes", mine.payload_bytes, theirs.payload_bytes);
  }
  if (mine.unweighted != theirs.unweighted) {
    return differ("unweighted", mine.unweighted, theirs.unweighted);
  }
  if (mine.layout != theirs.layout) return differ("layout", mine.layout, theirs.layout);
  if (mine.topk1 != theirs.topk1) return differ("topk1", mine.topk1, theirs.topk1);
  if (mine.reduction != theirs.reduction) {
    return differ("reduction", mine.reduction, theirs.reduction);
  }
  const auto agreed = [](Path path) {
    return path == Path::bsp || path == Path::allgather || path == Path::relay;
  };
  if (mine.path != theirs.path && (agreed(mine.path) || agreed(theirs.path))) {
    return differ("path", mine.path, theirs.path);
  }
  if (mine.view != theirs.view) return differ("view", mine.view, theirs.view);
  if (mine.map_version != theirs.map_version) {
    return differ("map_version", mine.map_version, theirs.map_version);
  }
  if (mine.layer != theirs.layer) return differ("layer", mine.layer, theirs.layer);
  if (mine.round != theirs.round) return differ("round", mine.round, theirs.round);
  return {};
}

OpDifference find_corruption(const OpLine& theirs, const GroupConfig& config) {
  const auto beyond = [](const char* field, auto seen, std::uint64_t limit) {
    return OpDifference{field, limit, static_cast<std::uint64_t>(seen)};
  };
  if (theirs.kind != OpKind::dispatch && theirs.kind != OpKind::combine) {
    return beyond("operation kind", theirs.kind, static_cast<std::uint64_t>(OpKind::combine));
  }
  if (theirs.dtype > DType::u8) return beyond("dtype", theirs.dtype, 3);
  if (theirs.quant > Quant::mxfp8) return beyond("quant", theirs.quant, 5);
  if (theirs.layout > Layout::expert_padded) return beyond("layout", theirs.layout, 2);
  if (theirs.reduction > Reduction::per_host) return beyond("reduction", theirs.reduction, 3);
  if (theirs.topk1 > 1) return beyond("topk1", theirs.topk1, 1);
  const auto max_tokens = static_cast<std::uint64_t>(config.max_tokens);
  if (theirs.tokens > max_tokens) return beyond("tokens", theirs.tokens, max_tokens);
  if (theirs.path > Path::relay || theirs.path == Path::automatic) {
    return beyond("path", theirs.path, static_cast<std::uint64_t>(Path::relay));
  }
  if (!config.push && theirs.path == Path::push) return beyond("path", theirs.path, 2);
  if (!config.bsp && theirs.path == Path::bsp) return beyond("path", theirs.path, 2);
  if (!config.relay && theirs.path == Path::relay) return beyond("path", theirs.path, 2);
  if (theirs.spare != 0) return beyond("spare bits", theirs.spare, 0);
  if (theirs.alignment < 1 || theirs.alignment > kMaxAlignment) {
    return beyond("alignment", theirs.alignment, kMaxAlignment);
  }
  if (theirs.by_expert != 0 && (theirs.kind != OpKind::combine || !is_by_expert(theirs.layout))) {
    return beyond("by_expert", 1, 0);
  }
  const bool padded = theirs.layout == Layout::expert_padded;
  const auto most = static_cast<std::uint64_t>(padded ? config.expert_capacity : 0);
  if (theirs.capacity > most) return beyond("capacity", theirs.capacity, most);
  return {};
}

}  // namespace ubep
