// Dispatch: what goes in (routing, options) and what comes out (received rows).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "ubep/types.hpp"

namespace ubep {

// The gate's decision for this rank's tokens.
struct Routing {
  std::span<const std::int32_t> topk_idx;  // [num_tokens, topk] global expert ids; -1 = none
  std::span<const float> topk_weights;     // [num_tokens, topk]
  int topk = 0;
  // [num_tokens], 0 = the token takes no part, whatever its ids are; empty = all do.
  std::span<const std::uint8_t> active = {};
};

// Bytes that travel with every token, behind its row: scales of rows that the caller quantised
// itself, an adapter's id. All ranks give the same ones in the same order; of a difference only
// another size of all of them is noticed.
struct Payload {
  std::string_view name;
  const void* data = nullptr;     // [num_tokens], stride_bytes apart
  std::int64_t bytes = 0;         // of one token
  std::int64_t stride_bytes = 0;  // 0 = dense
};

// What a dispatch sends. Converts from the rows alone.
struct Input {
  ConstRows x;
  std::span<const Payload> payloads;
  // Where received rows are written, instead of memory of the library: [rows, hidden] of x's hidden
  // and dtype, apart from x. For layouts whose rows are one tensor (expert layouts, contiguous) and
  // rows that travel as they are; not with in_place. Of more rows than it has the dispatch ends
  // with no_capacity, and they are where they are without it: nothing is lost. Shapes can be fixed
  // with it: rows behind the last are left alone, Received::topk_idx says -1 of them (expert
  // layouts: they are beyond the last of expert_offsets), and combine takes a `y` of as many rows.
  Rows out = {};

  // NOLINTNEXTLINE(google-explicit-constructor): rows alone are what is sent most often
  Input(const ConstRows& rows, std::span<const Payload> more = {}) : x(rows), payloads(more) {}
  Input(const Rows& rows) : x(rows) {}  // NOLINT(google-explicit-constructor)
  // As ConstRows.
  Input(const void* rows, std::int64_t count, std::int64_t width, DType type,
        std::int64_t stride_in_bytes = 0)
      : x(rows, count, width, type, stride_in_bytes) {}
};

struct DispatchOptions {
  Layout layout = Layout::rank_major;
  Path path = Path::automatic;
  Reduction reduction = Reduction::automatic;
  Weighting weighting = Weighting::kernel;  // rank_major only
  // rank_major, pull or push: one row per (token, k) with a local expert, for kernels that cannot
  // skip -1.
  bool topk1 = false;
  // pull, push: received rows may be overwritten with the outputs and are combined from there.
  bool in_place = false;
  // pull, push, allgather, rank_major: rows of all sources packed, instead of [size, rows per
  // source, hidden].
  bool contiguous = false;
  // read: also offer all peers' tokens as one read-only tensor, see Received::mapped. A source that
  // pushes makes it a mismatch.
  bool mapped_view = false;
  // expert_major: each expert's first row is a multiple of this; the rows between are zero.
  int expert_alignment = 1;
  // expert_padded: rows per local expert; 0 = CommunicatorOptions::expert_capacity. Rows beyond it
  // have no place: the owner's dispatch ends with no_capacity (its lease lasts, other rows are
  // there), and combine leaves them out and clears valid_tokens of their tokens.
  int expert_capacity = 0;
  // expert layouts: rows are copied expert by expert, each step() of a lane the next one, and can
  // be used as soon as Communicator::poll_expert() says so. Rows that sources push are there all at
  // once.
  bool by_expert = false;
  // Rows are quantised on their way (types.hpp); experts read them with Received::quant. Outputs
  // are of the dtype of x. Not with in_place or a buffer of input().
  Quant quant = Quant::none;
};

// Scales of a quantised row, one behind the other in the row itself.
struct ScalePlace {
  std::int64_t offset = 0;  // bytes from the row's beginning
  std::int64_t count = 0;
  std::int64_t bytes = 0;  // of one: 4 = fp32, 1 = a power of two, as fp32's exponent (e8m0)
  std::int64_t block = 0;  // elements that share one
};

struct PayloadPlace {
  std::string name;
  std::int64_t offset = 0;  // bytes from the row's beginning, a multiple of 8
  std::int64_t bytes = 0;
};

// Received rows of one dispatch. Views into the handle and its lease: they end with combine,
// release() or the handle. N = number of rows, K = topk, Le = local experts, R = ranks.
struct Received {
  Layout layout = Layout::rank_major;
  DType dtype = DType::bf16;  // of the tokens before quantisation, and of the outputs
  int hidden = 0;
  int topk = 0;
  // How a row is to be read: elements as `quant` says (none: of dtype), then scales and payloads.
  Quant quant = Quant::none;
  std::int64_t row_bytes = 0;
  ScalePlace scales;
  std::span<const PayloadPlace> payloads;  // in the order of Input::payloads
  std::uint64_t epoch = 0;
  // Bit q: rank q took part. Cleared when it was lost before; rows that it had announced and not
  // pushed are zero.
  std::uint64_t sources = 0;

  // Rows. rank_major: i = 0..N-1, by source, then token. Expert layouts: row i of the tensor,
  // i = 0..num_rows-1 with padding counted.
  std::int64_t num_rows = 0;
  const std::byte* row(std::int64_t i) const {
    return row_table.empty() ? base + i * stride_bytes : row_table[static_cast<std::size_t>(i)];
  }
  // One tensor [num_rows, hidden] when row_table is empty; its rows are stride_bytes apart (a
  // multiple of 64, but in Input::out). Otherwise the address of every row; with pull and push (and
  // neither contiguous nor in_place) the rows of source q begin at base + q * src_stride_bytes.
  std::span<const std::byte* const> row_table;
  const std::byte* base = nullptr;  // Input::out, where that was given and large enough
  std::int64_t stride_bytes = 0;
  std::int64_t src_stride_bytes = 0;

  // rank_major
  std::span<const std::int32_t> src_counts;  // [R] rows from each source
  // [N, K] local expert ids, -1 = not here ([N] for topk1), and their weights, 0 where it is -1. In
  // Input::out: of all its rows.
  std::span<const std::int32_t> topk_idx;
  std::span<const float> topk_weights;
  std::span<const std::int32_t> expert_rows;  // [sum of expert_counts] rows of each local expert

  // both layouts
  std::span<const std::int32_t> expert_counts;   // [Le] rows for each local expert
  std::span<const std::int32_t> expert_offsets;  // [Le + 1] into expert_rows, or first row

  // expert_padded: rows that the fullest expert was sent, when beyond its capacity; else 0. Such an
  // expert has `capacity` rows in expert_counts.
  std::uint32_t overflow = 0;

  // All peers' tokens as one tensor [R, max_tokens, hidden], rank blocks rank_stride_bytes apart,
  // read-only; only rows with an id >= 0 in mapped_idx [R, max_tokens, K] are meant for this rank.
  const std::byte* mapped = nullptr;
  std::int64_t mapped_rank_stride_bytes = 0;
  std::span<const std::int32_t> mapped_idx;
  std::span<const float> mapped_weights;
};

}  // namespace ubep
