#include "api/path_choice.hpp"

namespace ubep {

StoreChoice choose_store(Store asked, Placement placement) {
  if (asked != Store::automatic) return {asked, "asked for"};
  switch (placement) {
    case Placement::smt:
    case Placement::near:
      return {Store::near, "probe: near"};
    case Placement::far:
      return {Store::far, "probe: far"};
    default:
      return {Store::far, "placement unknown"};
  }
}

PathChoice choose_path(const DispatchOptions& options, const PathFacts& facts) {
  if (options.path != Path::automatic) return {options.path, "asked for"};
  if (is_by_expert(options.layout)) {
    return {Path::pull,
            "expert layouts: a token crosses once, its copies are made where they stay"};
  }
  if (options.topk1 || options.in_place || options.contiguous) {
    return {Path::pull, "the options need rows of their own: one copy, at the receiver"};
  }
  (void)facts;
  return {Path::read, "rank_major: rows are read where they are, nothing is copied on receipt"};
}

}  // namespace ubep
