#include "api/set_up.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>

#include "base/hash.hpp"
#include "base/math.hpp"
#include "base/system_limits.hpp"
#include "engine/engine.hpp"
#include "fabric/shm/memory_limit.hpp"
#include "fabric/ucx/host.hpp"
#include "protocol/segment_layout.hpp"
#include "ubep/status.hpp"

namespace ubep {
namespace {

// Longer ones would overflow a time point, and are for ever.
constexpr std::chrono::milliseconds kLongest = std::chrono::hours(24 * 365);

AgreedFields agreed_fields(const GroupConfig& config) {
  std::uint64_t map = config.experts.rank.size();
  for (std::int32_t r : config.experts.rank) map = mix(map, static_cast<std::uint64_t>(r));
  return {{{"num_experts", config.experts.rank.size()},
           {"expert_rank (hash)", map},
           {"max_tokens", static_cast<std::uint64_t>(config.max_tokens)},
           {"max_hidden x max_dtype (bytes)", config.max_token_bytes},
           {"max_payload", config.max_payload},
           {"max_topk", static_cast<std::uint64_t>(config.max_topk)},
           {"slots", static_cast<std::uint64_t>(config.slots)},
           {"expert_capacity", static_cast<std::uint64_t>(config.expert_capacity)},
           {"push", config.push ? 1U : 0U},
           {"bsp", config.bsp ? 1U : 0U},
           {"protocol", static_cast<std::uint64_t>(config.protocol),
            [](std::uint64_t value) { return name(static_cast<Protocol>(value)); }},
           {"checksum_rows", static_cast<std::uint64_t>(config.checksum_rows)},
           {"stage_pushed", config.stage_pushed ? 1U : 0U}}};
}

// Of this process: its own memory and what it maps of its peers'.
std::uint64_t mapped_bytes(const JoinRequest& request, std::uint64_t of_engine, bool threads) {
  std::uint64_t bytes = of_engine;
  for (std::size_t r = 0; r < request.segment_bytes.size(); ++r) {
    if (threads && r != static_cast<std::size_t>(request.rank)) continue;  // they are here already
    bytes = checked_add(bytes, request.segment_bytes[r]);
    if (!request.inbox_bytes.empty()) bytes = checked_add(bytes, request.inbox_bytes[r]);
  }
  return bytes;
}

}  // namespace

std::chrono::milliseconds timeout_of(const CommunicatorOptions& options) {
  if (options.timeout.count() > 0) return std::min(options.timeout, kLongest);
  const char* text = std::getenv("UBEP_TIMEOUT_MS");
  if (text == nullptr || *text == 0) return std::chrono::seconds(30);
  std::int64_t value = 0;
  const char* end = text + std::strlen(text);
  const auto parsed = std::from_chars(text, end, value);
  if (parsed.ec != std::errc{} || parsed.ptr != end || value <= 0 || value > kLongest.count()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("UBEP_TIMEOUT_MS is '{}', expected milliseconds, 1..{}", text,
                            kLongest.count()));
  }
  return std::chrono::milliseconds(value);
}

MemoryPlan plan_of(const GroupConfig& config, int rank) {
  MemoryPlan plan;
  const SegmentLayout layout(config, rank);
  plan.shared_bytes = layout.bytes() + layout.inbox_bytes();
  plan.private_bytes = private_bytes(config, rank);
  // Per slot: the record, x, and for a balanced routing topk rows per token received and put out.
  const auto choices =
      static_cast<std::uint64_t>(config.max_tokens) * static_cast<std::uint64_t>(config.max_topk);
  const auto rows = static_cast<std::uint64_t>(config.max_tokens) + 2 * choices;
  const auto per_slot = checked_add(checked_mul(rows, config.max_stride), checked_mul(choices, 12));
  plan.expected_resident_bytes = checked_mul(static_cast<std::uint64_t>(config.slots), per_slot);
  return plan;
}

void check_memory(const GroupConfig& config, int rank) {
  const std::uint64_t all = checked_mul(plan_of(config, rank).expected_resident_bytes,
                                        static_cast<std::uint64_t>(config.size));
  const std::uint64_t available = available_memory_bytes();
  if (all > available) {
    throw Error(ErrorCode::setup,
                fmt::format("the {} ranks would need about {} MiB, available are {} MiB (of this "
                            "machine, or of what memory.max leaves its control groups): lower "
                            "max_tokens, max_topk or slots",
                            config.size, all >> 20, available >> 20));
  }
}

JoinRequest request_of(const Bootstrap& bootstrap) {
  return {.rank = bootstrap.rank,
          .size = bootstrap.size,
          .job = bootstrap.job,
          .deadline = std::chrono::steady_clock::now() + std::min(bootstrap.timeout, kLongest),
          .fields = {},
          .segment_bytes = {},
          .inbox_bytes = {},
          .told_bytes = {},
          .host = bootstrap.address.empty() ? std::string() : host_id(),
          .members = bootstrap.members,
          .names_members = !bootstrap.members.empty(),
          .key = JobKey(bootstrap.key)};
}

JoinRequest request_of(const Bootstrap& bootstrap, const GroupConfig& config) {
  JoinRequest request = request_of(bootstrap);
  request.fields = agreed_fields(config);
  for (int r = 0; r < bootstrap.size; ++r) {
    const SegmentLayout layout(config, r);
    request.segment_bytes.push_back(layout.bytes());
    request.told_bytes.push_back(layout.x(0, 0, 0, 0).offset);
    if (config.push) request.inbox_bytes.push_back(layout.inbox_bytes());
  }
  check_address_space(
      mapped_bytes(request, private_bytes(config, bootstrap.rank), bootstrap.threads != nullptr));
  return request;
}

}  // namespace ubep
