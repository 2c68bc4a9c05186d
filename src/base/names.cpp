#include <fmt/format.h>

#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "ubep/status.hpp"
#include "ubep/types.hpp"

namespace ubep {
namespace {

template <class Enum, std::size_t n>
const char* pick(Enum value, const char* const (&names)[n]) {
  const auto i = static_cast<std::size_t>(value);
  return i < n ? names[i] : "?";
}

std::string rank_list(std::uint64_t mask) {
  std::vector<int> ranks;
  for (int r = 0; r < 64; ++r) {
    if ((mask >> r & 1) != 0) ranks.push_back(r);
  }
  return fmt::format("{}", fmt::join(ranks, ","));
}

std::string where(const Status& s) {
  if (s.kind == OpKind::none) return fmt::format("rank {}", s.rank);
  if (s.epoch == 0) return fmt::format("rank {}: {}", s.rank, name(s.kind));
  return fmt::format("rank {}: {} of epoch {}", s.rank, name(s.kind), s.epoch);
}

// A field of the op line as text: enumerators by name.
std::string value_name(const std::string_view field, std::uint64_t value) {
  if (field.substr(0, 4) == "path") return name(static_cast<Path>(value));
  if (field == "layout") return name(static_cast<Layout>(value));
  if (field == "dtype") return name(static_cast<DType>(value));
  if (field == "quant") return name(static_cast<Quant>(value));
  if (field == "reduction") return pick(value, {"auto", "exact", "per_rank", "per_host"});
  return std::to_string(value);
}

}  // namespace

const char* name(DType value) { return pick(value, {"bf16", "fp16", "fp32", "u8"}); }
const char* name(Layout value) {
  return pick(value, {"rank_major", "expert_major", "expert_padded"});
}
const char* name(Path value) {
  return pick(value, {"auto", "read", "pull", "push", "bsp", "allgather", "relay"});
}
const char* name(Protocol value) {
  return pick(value,
              {"auto", "put-with-signal", "tff-16", "tff-128", "tff-512", "dc", "sp", "fence"});
}
const char* name(Store value) { return pick(value, {"auto", "near", "far"}); }
const char* name(Placement value) { return pick(value, {"unknown", "smt", "near", "far"}); }
const char* name(Quant value) {
  return pick(value, {"none", "fp8", "fp8_pow2", "fp8_ue8m0", "int8", "mxfp8"});
}
const char* name(OpKind value) { return pick(value, {"operation", "dispatch", "combine"}); }
const char* name(Word value) {
  return pick(value, {"none", "op", "pub", "out", "done", "record", "state", "base", "sent",
                      "armed", "relayed", "summed"});
}
const char* name(Code value) {
  return pick(value, {"ok", "not_ready", "slot_busy", "timeout", "peer_lost", "mismatch", "corrupt",
                      "no_capacity"});
}

std::string Status::message() const {
  switch (code) {
    case Code::ok:
      return "ok";
    case Code::not_ready:
      if (peer < 0) return fmt::format("not_ready: {}: {}", where(*this), what);
      return fmt::format("not_ready: {}: {}", where(*this), awaited());
    case Code::slot_busy:
      if (expected == 0) return fmt::format("slot_busy: {}: {}", where(*this), what);
      return fmt::format("slot_busy: {}: {} (CommunicatorOptions::slots is {})", where(*this), what,
                         expected);
    case Code::timeout:
      if (peer < 0) return fmt::format("timeout: {}: {}", where(*this), what);
      return fmt::format("timeout: {} waits for {} (missing ranks: {})", where(*this), awaited(),
                         rank_list(missing));
    case Code::peer_lost:
      return fmt::format("peer_lost: {}: rank {} is gone: {} (lost ranks: {})", where(*this), peer,
                         what, rank_list(missing));
    case Code::mismatch:
      if (std::strcmp(what, "operation kind") == 0) {
        return fmt::format("mismatch: {}: the operation is a {} on rank {} and a {} on rank {}",
                           where(*this), name(static_cast<OpKind>(expected)), rank,
                           name(static_cast<OpKind>(seen)), peer);
      }
      if (word == Word::out) {
        return fmt::format(
            "mismatch: {}: rank {} gave its dispatch up: it was released, or its handle "
            "destroyed, before all outputs were published",
            where(*this), peer);
      }
      return fmt::format("mismatch: {}: {} is {} on rank {} and {} on rank {}", where(*this), what,
                         value_name(what, expected), rank, value_name(what, seen), peer);
    case Code::corrupt:
      return fmt::format("corrupt: {}: rank {} published {} {}, allowed {}", where(*this), peer,
                         what, seen, expected);
    case Code::no_capacity:
      return fmt::format("no_capacity: {}: {} is {}, at most {}", where(*this), what, seen,
                         expected);
  }
  return "?";
}

std::string Status::awaited() const {
  std::string text = fmt::format("rank {}: {} is {}, needs {}", peer, name(word), seen, expected);
  const bool outputs = kind == OpKind::combine;
  if (rows > 0) text += fmt::format(", {} {}", rows, outputs ? "outputs" : "rows");
  if (rows > 0 && outputs) text += fmt::format(" for tokens {} to {}", first_token, last_token);
  if (expert >= 0) text += fmt::format(", first of expert {}", expert);
  return text;
}

void Status::or_throw() const {
  if (!ok()) throw Error(ErrorCode::status, message());
}

}  // namespace ubep
