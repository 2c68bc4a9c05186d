#include "api/path_choice.hpp"

namespace ubep {
namespace {

constexpr std::uint64_t kPushBytes = 128 * 1024;

}  // namespace

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
  // All ranks must come to the same: by nothing but what they agree on.
  if (facts.hosts && options.topk1) {
    return {Path::push, "ranks may be on other hosts: rows are put where they go"};
  }
  if (facts.hosts) return {Path::relay, "ranks may be on other hosts: a token goes once to each"};
  if (options.by_expert) return {Path::pull, "rows are copied expert by expert"};
  if (is_by_expert(options.layout)) {
    if (facts.push && facts.store == Store::far && facts.bytes >= kPushBytes) {
      return {Path::push, "far and at least 128 KiB of tokens: rows go straight to their place"};
    }
    return {Path::pull, "a token crosses once, its copies are made where they stay"};
  }
  if (options.topk1 || options.in_place || options.contiguous) {
    return {Path::pull, "the options ask for rows of the receiver's own"};
  }
  return {Path::read, "rows are read where they are, nothing is copied on receipt"};
}

}  // namespace ubep
