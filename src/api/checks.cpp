#include "api/checks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <string_view>

#include "base/math.hpp"
#include "ubep/status.hpp"

namespace ubep {
namespace {

constexpr std::uint64_t kLeastRecord = 16;
constexpr int kMostPayload = 32768;
constexpr std::int64_t kMostRows = 0x7FFFFFFF;
constexpr std::int64_t kMostStride = std::int64_t{1} << 31;

template <class... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> text, Args&&... args) {
  throw Error(ErrorCode::invalid_argument, fmt::format(text, std::forward<Args>(args)...));
}

void check_range(const char* argument, std::int64_t value, std::int64_t low, std::int64_t high) {
  if (value < low || value > high) {
    refuse("{} is {}, expected {}..{}", argument, value, low, high);
  }
}

void check_flag(const char* option, bool set, bool allowed, const char* needs) {
  if (set && !allowed) refuse("{} is set, expected only with {}", option, needs);
}

// Whether an element lies in both. Columns of one wider matrix may be apart.
bool overlap(const ConstRows& a, const ConstRows& b) {
  if (a.num_rows == 0 || b.num_rows == 0) return false;
  const auto end = [](const ConstRows& rows) {
    return rows.row(rows.num_rows - 1) + rows.row_bytes();
  };
  if (a.row(0) >= end(b) || b.row(0) >= end(a)) return false;
  if (a.stride() != b.stride()) return true;
  const std::int64_t stride = a.stride();
  const std::int64_t column = ((b.row(0) - a.row(0)) % stride + stride) % stride;
  return column < a.row_bytes() || column + b.row_bytes() > stride;
}

void check_address(const Bootstrap& bootstrap) {
  check_range("port", bootstrap.port, 0, 65535);
  const std::string& address = bootstrap.address;
  if (address.empty()) return;
  if (bootstrap.threads != nullptr) {
    refuse("address is '{}', expected none where ranks are threads", address);
  }
  const auto may_be = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view(".-_:%").find(c) != std::string_view::npos;
  };
  if (address.size() > 255 || !std::all_of(address.begin(), address.end(), may_be) ||
      std::count(address.begin(), address.end(), ':') == 1) {  // host:port
    refuse(
        "address is '{}', expected the name or IP address of a host; its port is an option of "
        "its own (Bootstrap::port, UBEP_PORT)",
        address);
  }
}

}  // namespace

Bootstrap check_bootstrap(const Bootstrap& bootstrap) {
  check_range("size", bootstrap.size, 1, kMaxRanks);
  check_range("rank", bootstrap.rank, 0, bootstrap.size - 1);
  if (bootstrap.timeout.count() < 0) {
    refuse("bootstrap.timeout is {} ms, expected >= 0", bootstrap.timeout.count());
  }
  if (!bootstrap.key.empty() && bootstrap.threads != nullptr) {
    refuse("key is given, expected none where ranks are threads");
  }
  check_address(bootstrap);
  Bootstrap checked = bootstrap;
  if (!checked.members.empty()) checked.members = check_members(bootstrap, checked.members);
  return checked;
}

std::vector<int> check_members(const Bootstrap& bootstrap, std::vector<int> members) {
  if (bootstrap.threads != nullptr) {
    refuse("members are {}, expected none where ranks are threads: all take part",
           fmt::join(members, ", "));
  }
  std::sort(members.begin(), members.end());
  for (std::size_t i = 0; i < members.size(); ++i) {
    check_range(fmt::format("members[{}]", i).c_str(), members[i], 0, bootstrap.size - 1);
    if (i > 0 && members[i] == members[i - 1]) refuse("members hold rank {} twice", members[i]);
  }
  if (!std::binary_search(members.begin(), members.end(), bootstrap.rank)) {
    refuse("members are {}, expected this rank, {}, among them", fmt::join(members, ", "),
           bootstrap.rank);
  }
  return members;
}

void check_job(const Bootstrap& bootstrap) {
  if (bootstrap.size == 1 || bootstrap.threads != nullptr || !bootstrap.job.empty()) return;
  refuse("job is empty, expected a name that all {} ranks of the job give alike", bootstrap.size);
}

GroupConfig make_config(const CommunicatorOptions& o, int size) {
  check_range("num_experts", o.num_experts, 1, kMaxExperts);
  check_range("max_tokens", o.max_tokens, 0, 1 << 24);
  check_range("max_hidden", o.max_hidden, 1, 1 << 24);
  check_range("max_payload", o.max_payload, 0, kMostPayload);
  check_range("max_topk", o.max_topk, 1, kMaxTopk);
  check_range("slots", o.slots, 1, kMaxSlots);
  if (o.timeout.count() < 0) refuse("timeout is {} ms, expected >= 0", o.timeout.count());
  if (o.max_dtype > DType::u8) refuse("max_dtype is {}, expected 0..3", int(o.max_dtype));
  if (o.store > Store::far) refuse("store is {}, expected 0..2", int(o.store));
  std::vector<std::int32_t> owner = o.expert_rank;
  if (owner.empty()) owner = block_map(o.num_experts, size);
  if (owner.size() != static_cast<std::size_t>(o.num_experts)) {
    refuse("expert_rank has {} entries, expected num_experts = {}", owner.size(), o.num_experts);
  }
  for (std::size_t e = 0; e < owner.size(); ++e) {
    if (owner[e] < 0 || owner[e] >= size) {
      refuse("expert_rank[{}] is {}, expected 0..{}", e, owner[e], size - 1);
    }
  }
  check_range("expert_capacity", o.expert_capacity, 0, 1 << 24);
  check_flag("bsp", o.bsp, o.push, "push");
  if (o.protocol > Protocol::fence) refuse("protocol is {}, expected 0..7", int(o.protocol));
  check_flag("stage_pushed", o.stage_pushed, o.push, "push");
  check_flag("protocol", o.protocol != Protocol::automatic, o.push, "push");
  check_range("checksum_rows", o.checksum_rows, 0, 1 << 24);
  check_flag("checksum_rows", o.checksum_rows != 0, o.protocol == Protocol::checksum,
             "Protocol::checksum");
  GroupConfig config;
  config.expert_capacity = o.expert_capacity;
  config.push = o.push;
  config.bsp = o.bsp;
  config.stage_pushed = o.stage_pushed;
  if (o.protocol != Protocol::automatic) config.protocol = o.protocol;
  config.checksum_rows = o.checksum_rows;
  config.max_payload = static_cast<std::uint64_t>(o.max_payload);
  config.size = size;
  config.slots = o.slots;
  config.max_tokens = o.max_tokens;
  config.max_topk = o.max_topk;
  config.max_token_bytes = static_cast<std::uint64_t>(o.max_hidden) * size_of(o.max_dtype);
  // A quantised row is shorter, unless it has less elements than a scale has bytes.
  config.max_row_bytes = std::max<std::uint64_t>(config.max_token_bytes, kLeastRecord);
  if (o.max_payload != 0) {
    config.max_row_bytes =
        round_up(config.max_row_bytes, 8) + static_cast<std::uint64_t>(o.max_payload);
  }
  config.max_stride = round_up(config.max_row_bytes, kLineBytes);
  config.experts = ExpertMap(std::move(owner), size);
  for (int r = 0; r < size; ++r) {
    if (config.max_rows(r) > 0x7FFFFFFF) {
      refuse(
          "max_tokens x size x max_topk is {} rows on rank {}, expected at "
          "most {}",
          config.max_rows(r), r, 0x7FFFFFFF);
    }
  }
  return config;
}

void let_span_hosts(const CommunicatorOptions& options, GroupConfig& config) {
  check_flag("protocol", options.protocol > Protocol::put_with_signal, false,
             "ranks of one host (no Bootstrap::address)");
  config.push = true;
  config.returns = true;
  config.relay = true;
  config.stage_pushed = true;
}

void check_rows(const ConstRows& rows, const char* argument, const GroupConfig& config) {
  if (rows.dtype > DType::u8) refuse("{}.dtype is {}, expected 0..3", argument, int(rows.dtype));
  if (rows.num_rows < 0 || rows.num_rows > kMostRows) {
    refuse("{}.num_rows is {}, expected 0..{}", argument, rows.num_rows, kMostRows);
  }
  const auto most = static_cast<std::int64_t>(config.max_token_bytes / size_of(rows.dtype));
  if (rows.hidden < 1 || rows.hidden > most) {
    refuse("{}.hidden is {} {} elements, expected 1..{} (max_hidden at creation)", argument,
           rows.hidden, name(rows.dtype), most);
  }
  if (rows.stride() < rows.row_bytes() || rows.stride() > kMostStride) {
    refuse("{}.stride_bytes is {}, expected {}..{}, or 0 = dense", argument, rows.stride_bytes,
           rows.row_bytes(), kMostStride);
  }
  if (rows.data == nullptr && rows.num_rows > 0) {
    refuse("{}.data is null, expected {} rows", argument, rows.num_rows);
  }
}

void check_payloads(const Input& in, const DispatchOptions& options, const GroupConfig& config) {
  if (options.quant == Quant::none && in.payloads.empty() && !options.in_place) return;
  if (options.quant > Quant::mxfp8) refuse("quant is {}, expected 0..5", int(options.quant));
  const bool quantised = options.quant != Quant::none;
  check_flag("quant", quantised, in.x.dtype != DType::u8, "x of bf16, fp16 or fp32");
  check_flag("in_place", options.in_place,
             !quantised && in.payloads.empty() && in.x.dtype != DType::u8,
             "rows that travel as they are: without quant or payloads, and not of u8");
  std::uint64_t bytes = 0;
  for (const Payload& payload : in.payloads) {
    const std::string_view name = payload.name;
    if (payload.bytes < 1 || payload.bytes > kMostPayload) {
      refuse("payload '{}' has {} bytes, expected 1..{}", name, payload.bytes, kMostPayload);
    }
    if (payload.stride_bytes != 0 && payload.stride_bytes < payload.bytes) {
      refuse("payload '{}' has stride_bytes {}, expected at least {}", name, payload.stride_bytes,
             payload.bytes);
    }
    if (payload.data == nullptr && in.x.num_rows > 0) {
      refuse("payload '{}' has no data, expected {} x {} bytes", name, in.x.num_rows,
             payload.bytes);
    }
    bytes += round_up(static_cast<std::uint64_t>(payload.bytes), 8);
  }
  const std::uint64_t most = config.max_payload;
  if (bytes > most) {
    refuse("payloads have {} bytes, expected at most {} (max_payload at creation)", bytes, most);
  }
}

void check_out(const Input& in, const DispatchOptions& options) {
  const Rows& out = in.out;
  if (out.data == nullptr && out.num_rows == 0) return;
  const ConstRows& x = in.x;
  const bool one_tensor = is_by_expert(options.layout) || options.contiguous;
  check_flag("out", true, one_tensor, "expert layouts, or rank_major with contiguous");
  check_flag("out", true, !options.in_place, "in_place off");
  check_flag("out", true, options.quant == Quant::none && in.payloads.empty(),
             "rows that travel as they are: without quant or payloads");
  check_range("out.num_rows", out.num_rows, 0, kMostRows);
  if (out.data == nullptr) refuse("out.data is null, expected {} rows", out.num_rows);
  if (out.hidden != x.hidden || out.dtype != x.dtype) {
    refuse("out is {} of hidden {}, expected {} of {} as x", name(out.dtype), out.hidden,
           name(x.dtype), x.hidden);
  }
  check_range("out.stride_bytes", out.stride(), out.row_bytes(), kMostStride);
  if (overlap(out, x)) refuse("out overlaps x, expected a tensor apart");
}

void check_same_payloads(const Input& in, const HandleState& cached) {
  const auto& expected = cached.encoder.layout().payloads;
  const std::size_t most = cached.encoder.is_plain() ? 0 : expected.size();
  if (in.payloads.size() != most) {
    refuse("there are {} payloads, expected {} as in the cached dispatch", in.payloads.size(),
           most);
  }
  for (std::size_t i = 0; i < most; ++i) {
    const Payload& payload = in.payloads[i];
    if (payload.name == expected[i].name && payload.bytes == expected[i].bytes) continue;
    refuse("payload {} is '{}' of {} bytes, expected '{}' of {} as in the cached dispatch", i,
           payload.name, payload.bytes, expected[i].name, expected[i].bytes);
  }
}

void check_routing(const Routing& routing, std::int64_t num_tokens, const GroupConfig& config) {
  check_range("routing.topk", routing.topk, 1, config.max_topk);
  const auto expected = static_cast<std::size_t>(num_tokens * routing.topk);
  if (routing.topk_idx.size() != expected) {
    refuse("routing.topk_idx has {} elements, expected {} tokens x topk {} = {}",
           routing.topk_idx.size(), num_tokens, routing.topk, expected);
  }
  if (routing.topk_weights.size() != expected) {
    refuse("routing.topk_weights has {} elements, expected {} tokens x topk {} = {}",
           routing.topk_weights.size(), num_tokens, routing.topk, expected);
  }
  if (!routing.active.empty() && routing.active.size() != static_cast<std::size_t>(num_tokens)) {
    refuse("routing.active has {} elements, expected {} tokens or none", routing.active.size(),
           num_tokens);
  }
  if (expected > 0 && routing.topk_idx.data() == nullptr) {
    refuse("routing.topk_idx.data() is null, expected {} elements", expected);
  }
  if (expected > 0 && routing.topk_weights.data() == nullptr) {
    refuse("routing.topk_weights.data() is null, expected {} elements", expected);
  }
  if (!routing.active.empty() && routing.active.data() == nullptr) {
    refuse("routing.active.data() is null, expected {} elements", num_tokens);
  }
  const int experts = config.experts.num_experts();
  for (std::size_t i = 0; i < expected; ++i) {
    const std::int32_t e = routing.topk_idx[i];
    if (e >= -1 && e < experts) continue;
    const auto topk = static_cast<std::size_t>(routing.topk);
    if (!routing.active.empty() && routing.active[i / topk] == 0) continue;
    refuse("routing.topk_idx[{}][{}] is {}, expected -1..{}", i / topk, i % topk, e, experts - 1);
  }
}

namespace {

void check_path(const DispatchOptions& o, const GroupConfig& config) {
  const bool rank_major = o.layout == Layout::rank_major;
  check_flag("path read", o.path == Path::read, rank_major, "rank_major");
  check_flag("path read", o.path == Path::read, !config.relay, "ranks of one host");
  check_flag("by_expert", o.by_expert, !config.relay, "ranks of one host");
  check_flag("path push", o.path == Path::push, config.push, "CommunicatorOptions::push");
  check_flag("path bsp", o.path == Path::bsp, config.bsp, "CommunicatorOptions::bsp");
  check_flag("path bsp", o.path == Path::bsp, o.layout == Layout::expert_major, "expert_major");
  check_flag("path allgather", o.path == Path::allgather, rank_major, "rank_major");
  check_flag("path relay", o.path == Path::relay, config.relay, "Bootstrap::address");
}

}  // namespace

ResolvedOptions resolve(const DispatchOptions& options, const GroupConfig& config,
                        const PathFacts& facts) {
  DispatchOptions o = options;
  if (o.layout > Layout::expert_padded) refuse("layout is {}, expected 0..2", int(o.layout));
  if (o.path > Path::relay) refuse("path is {}, expected 0..6", int(o.path));
  if (o.reduction > Reduction::per_host) refuse("reduction is {}, expected 0..3", int(o.reduction));
  if (o.weighting > Weighting::owner) refuse("weighting is {}, expected 0..1", int(o.weighting));
  const bool rank_major = o.layout == Layout::rank_major;
  const PathChoice choice = choose_path(o, facts);
  o.path = choice.path;
  check_path(o, config);
  const bool pull = o.path == Path::pull || o.path == Path::push || o.path == Path::relay;
  check_flag("topk1", o.topk1, rank_major && pull && o.path != Path::relay,
             "rank_major on pull or push");
  check_flag("contiguous", o.contiguous, rank_major && o.path != Path::read,
             "rank_major on pull, push, relay or allgather");
  check_flag("in_place", o.in_place, pull && o.weighting == Weighting::kernel,
             "pull, push or relay and weighting by the kernel");
  check_flag("mapped_view", o.mapped_view, o.path == Path::read, "rank_major on read");
  check_flag("by_expert", o.by_expert, !rank_major, "expert layouts");
  check_flag("weighting owner", o.weighting == Weighting::owner, rank_major, "rank_major");
  check_flag("reduction exact", o.reduction == Reduction::exact, !rank_major, "expert layouts");
  const bool by_host = rank_major && config.relay && !o.topk1;
  check_flag("reduction per_host", o.reduction == Reduction::per_host, by_host,
             "rank_major without topk1 where ranks may be on several hosts");
  check_flag("reduction per_rank", o.reduction == Reduction::per_rank,
             !by_host || (o.path != Path::relay && o.path != Path::allgather),
             "paths other than relay and, between hosts, allgather");
  if (o.reduction == Reduction::automatic) {
    o.reduction = by_host      ? Reduction::per_host
                  : rank_major ? Reduction::per_rank
                               : Reduction::exact;
  }
  const bool packed = o.layout == Layout::expert_major;
  check_range("expert_alignment", o.expert_alignment, 1, packed ? kMaxAlignment : 1);
  if (o.layout == Layout::expert_padded) {
    check_flag("layout expert_padded", true, config.expert_capacity > 0,
               "CommunicatorOptions::expert_capacity");
    if (o.expert_capacity == 0) o.expert_capacity = config.expert_capacity;
  }
  const bool padded = o.layout == Layout::expert_padded;
  check_range("expert_capacity", o.expert_capacity, padded ? 1 : 0,
              padded ? config.expert_capacity : 0);
  return {o, choice.reason};
}

void check_expert(int expert, int num_local) {
  check_range("expert (local)", expert, 0, num_local - 1);
}

void check_roles(int lanes, const Roles& roles, SendOrder order) {
  if (order > SendOrder::by_token) refuse("order is {}, expected 0..1", static_cast<int>(order));
  if (lanes < 1 || lanes > kMaxLanes) {
    refuse("lanes is {}, expected 1..{}", lanes, kMaxLanes);
  }
  const auto [count, send, receive] = roles;
  if (count == 0 && send == 0 && receive == 0) return;
  const std::int64_t all = std::int64_t{count} + send + receive;
  const bool fits = count >= 1 && send >= 0 && receive >= 0 && all == lanes;
  if (fits && (send >= 1 || lanes == 1)) return;
  refuse("roles are {}:{}:{}, expected {}", count, send, receive,
         lanes == 1 ? "1:0:0 of one lane"
                    : fmt::format("at least 1 that counts and 1 that sends, {} in all", lanes));
}

void check_combine(const CombineArgs& args, const HandleState& h, const GroupConfig& config) {
  const auto check_like = [](const ConstRows& rows, const char* argument, const ConstRows& like,
                             const char* whose) {
    if (rows.hidden != like.hidden) {
      refuse("{}.hidden is {}, expected {} as {}", argument, rows.hidden, like.hidden, whose);
    }
    if (rows.dtype != like.dtype) {
      refuse("{}.dtype is {}, expected {} as {}", argument, name(rows.dtype), name(like.dtype),
             whose);
    }
  };
  const auto check = [&config](const ConstRows& rows, const char* argument, std::int64_t expected) {
    if (rows.num_rows != expected) {
      refuse("{}.num_rows is {}, expected {}", argument, rows.num_rows, expected);
    }
    check_rows(rows, argument, config);
    if (rows.dtype == DType::u8) refuse("{}.dtype is u8, expected bf16, fp16 or fp32", argument);
  };
  check_flag("by_expert", args.by_expert, is_by_expert(h.routed->options.layout), "expert layouts");
  check(args.out, "out", h.routed->send.num_tokens);
  const bool in_place = args.y.data == h.output.data && args.y.data != nullptr;
  // A rank that received nothing may have no memory for it.
  const bool given = args.y.data != nullptr || args.y.num_rows != 0 || args.y.hidden != 0;
  const bool whole = h.in_out && args.y.num_rows == h.out.num_rows;  // with the tail of `out`
  if (given) check(args.y, "y", whole ? h.out.num_rows : h.output.num_rows);
  check_flag("by_expert", args.by_expert, !h.routed->options.in_place || !given || in_place,
             "outputs in place, after a dispatch with in_place");
  if (!given || in_place) check_like(args.out, "out", h.output, "expert_output()");
  if (given) check_like(args.out, "out", args.y, "y");
  if (given && overlap(args.out, args.y)) refuse("out overlaps y, expected a tensor apart");
  for (const ConstRows& added : args.added) {
    if (added.data == nullptr && added.num_rows == 0) continue;
    check(added, "added", h.routed->send.num_tokens);
    check_like(added, "added", args.out, "out");
    // Row by row it is read before that row of `out` is written.
    const bool same = added.data == args.out.data && added.stride() == args.out.stride();
    if (!same && overlap(args.out, added)) {
      refuse("out overlaps added, expected a tensor apart or the same one");
    }
  }
  if (in_place && args.y.stride() != h.output.stride()) {
    refuse("y.stride_bytes is {} in expert_output(), expected {}", args.y.stride(),
           h.output.stride());
  }
}

}  // namespace ubep
