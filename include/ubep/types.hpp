// Vocabulary of the library: element types, layouts, paths, and views of row matrices.
//
// Every view is non-owning. `ConstRows{x, tokens, hidden, DType::bf16}` is a dense [tokens, hidden]
// matrix; give `stride_bytes` when its rows lie further apart.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ubep/export.hpp"

namespace ubep {

// Element type of activations. Sums are made in fp32 and rounded once, to nearest even.
// u8: bytes of rows that the caller has encoded itself; they are dispatched as they are.
enum class DType : std::uint8_t { bf16, fp16, fp32, u8 };

constexpr std::size_t size_of(DType dtype) {
  return dtype == DType::fp32 ? 4 : dtype == DType::u8 ? 1 : 2;
}

// Arrangement of received rows.
//   rank_major    a token once per destination rank, rows grouped by source rank, in token order;
//                 the owner weights its rows, combine is a plain sum over ranks.
//   expert_major  one row per (token, k), packed by local expert, order (local expert, source,
//                 token, k); combine weights the rows.
//   expert_padded one row per (token, k) in [local experts, capacity, hidden], packed at the front
//                 of each expert, order (source, token, k); what lies behind is undefined. For
//                 kernels of fixed shape.
enum class Layout : std::uint8_t { rank_major, expert_major, expert_padded };

constexpr bool is_by_expert(Layout layout) { return layout != Layout::rank_major; }

// How rows reach their owner.
//   read  the owner reads them where the source keeps them: no copy (rank_major only).
//   pull  the owner copies them out of the source's segment.
//   push  the source stores its rows into the owners' inboxes. What this rank receives from others
//         is their choice: rows of sources that do not push are pulled.
// Baselines, which all ranks must choose together:
//   bsp        bulk-synchronous (expert_major): rows into a window of the owner's inbox, a flag, a
//   wait
//              for all sources, copies from the window to the place of each row; outputs back into
//              a window of the source's.
//   allgather  every token to every rank, partial sums of every token back (rank_major): all-gather
//              and reduce-scatter.
//   relay      several hosts: a token goes once to each host, to one rank there, where the others
//              read it (rank_major) or copy it (expert layouts). rank_major: one sum of each host's
//              rows comes back.
enum class Path : std::uint8_t { automatic, read, pull, push, bsp, allgather, relay };

// How the owner of pushed rows learns that they have arrived (docs/protocol.md, "Protocols").
//   put_with_signal  bare rows, then one word that the fabric keeps behind them (`automatic`).
//   token_flag_N     Token-Flag Fusion: blocks of N bytes, each with a flag; row by row.
//   checksum         Data-for-Checksum: bare rows, and a CRC32C for each batch of them.
//   sentinel         Sentinel Polling: bare rows over words that the owner has marked as empty.
//   fence            bare rows, a wait until all are acknowledged, then flags: the baseline.
enum class Protocol : std::uint8_t {
  automatic,
  put_with_signal,
  token_flag_16,
  token_flag_128,
  token_flag_512,
  checksum,
  sentinel,
  fence
};

// How lines that cross between ranks are stored (docs/adr/0003-store-policy.md).
//   near  plain stores, in place: ranks share a cache.
//   far   non-temporal stores by the side that produces them; own rows stay in private memory.
// `automatic` takes what the probe at set-up found; unknown counts as far.
enum class Store : std::uint8_t { automatic, near, far };

// What the bits of a combined row depend on. Always fp32, multiply then add, from +0, one rounding;
// rank_major: the owners' rows are sums that were rounded, too, by the kernel or by the library.
//   exact     k order (default of expert_major).
//   per_rank  per-rank partial sums in k order, added in rank order (rank_major: the partial sums
//             are the owners' rows, so it is implied there).
//   per_host  rank_major: the owners' rows of each host are summed in rank order, that sum is
//   rounded
//             like a row, and the hosts' sums are added in order. A host is a run of ranks, one
//             number behind the other. What `automatic` is where ranks may be on several hosts.
enum class Reduction : std::uint8_t { automatic, exact, per_rank, per_host };

// Who multiplies rank_major rows by their top-k weights.
//   kernel  the caller's expert kernel: one output row per received row, already weighted.
//   owner   the library, on the owner: one output row per (received row, local expert) in the order
//           of `Received::expert_rows`.
enum class Weighting : std::uint8_t { kernel, owner };

// Format of quantised rows [hidden], hidden >= 1: values, then one scale for each block of columns;
// the last block may be a part of one. An element decodes to value * scale, one fp32 product.
// "amax" is the largest |x| of the block, or of the row; values are rounded to nearest, ties to
// even. e4m3 is E4M3 of the OCP 8-bit floating point specification (OFP8): largest 448, a NaN, no
// infinity.
//   none       rows of the source's dtype.
//   fp8        e4m3 [hidden]; scale fp32 [ceil(hidden / 128)] = max(amax, 1e-4) / 448. The value is
//              x * (448 / max(amax, 1e-4)): a quotient and a product, each rounded to fp32, then to
//              e4m3.
//   fp8_pow2   the same, but scale is the smallest power of two >= max(amax, 1e-4) / 448, found
//              without rounding. The value is x / scale, rounded once.
//   fp8_ue8m0  fp8_pow2 with each scale as one byte, its fp32 exponent: 2^(byte - 127).
//   int8       int8 [hidden] in -127..127; one fp32 scale = max(amax, 1e-10) / 127 for the row. The
//              value is x * (127 / max(amax, 1e-10)), rounded as for fp8.
//   mxfp8      MXFP8 (E4M3) of the OCP Microscaling Formats (MX) specification v1.0: e4m3 [hidden];
//              scale e8m0 [ceil(hidden / 32)] = 2^(floor(log2(amax)) - 8), at least 2^-127 (byte
//              0), which a block of zeros has too. The value is x / scale, rounded once, at most
//              448.
// NaN and infinity become NaN (byte 0x7f) where values are e4m3, as in OFP8's conversion without
// saturation, and do not count for the amax: the rest of the block is what it is without them. int8
// has no NaN: values of such a row are 0 and its scale is NaN, so all of it decodes to NaN instead
// of to numbers that hide it. -0 stays -0, except in int8.
enum class Quant : std::uint8_t { none, fp8, fp8_pow2, fp8_ue8m0, int8, mxfp8 };

// Distance of two CPUs as seen by a flag that travels between them.
enum class Placement : std::uint8_t { unknown, smt, near, far };

UBEP_API const char* name(DType dtype);
UBEP_API const char* name(Layout layout);
UBEP_API const char* name(Path path);
UBEP_API const char* name(Protocol protocol);
UBEP_API const char* name(Store store);
UBEP_API const char* name(Placement placement);
UBEP_API const char* name(Quant quant);

// A row matrix [num_rows, hidden] that may be written.
struct Rows {
  void* data = nullptr;
  std::int64_t num_rows = 0;
  std::int64_t hidden = 0;
  DType dtype = DType::bf16;
  std::int64_t stride_bytes = 0;  // distance of two rows; 0 = dense

  std::int64_t row_bytes() const { return hidden * static_cast<std::int64_t>(size_of(dtype)); }
  std::int64_t stride() const { return stride_bytes != 0 ? stride_bytes : row_bytes(); }
  std::byte* row(std::int64_t i) const { return static_cast<std::byte*>(data) + i * stride(); }
};

// A row matrix [num_rows, hidden] that is only read.
struct ConstRows {
  const void* data = nullptr;
  std::int64_t num_rows = 0;
  std::int64_t hidden = 0;
  DType dtype = DType::bf16;
  std::int64_t stride_bytes = 0;  // distance of two rows; 0 = dense

  ConstRows() = default;
  ConstRows(const void* rows, std::int64_t count, std::int64_t width, DType type,
            std::int64_t stride_in_bytes = 0)
      : data(rows), num_rows(count), hidden(width), dtype(type), stride_bytes(stride_in_bytes) {}
  ConstRows(const Rows& rows)  // NOLINT(google-explicit-constructor): a writable view is readable
      : ConstRows(rows.data, rows.num_rows, rows.hidden, rows.dtype, rows.stride_bytes) {}

  std::int64_t row_bytes() const { return hidden * static_cast<std::int64_t>(size_of(dtype)); }
  std::int64_t stride() const { return stride_bytes != 0 ? stride_bytes : row_bytes(); }
  const std::byte* row(std::int64_t i) const {
    return static_cast<const std::byte*>(data) + i * stride();
  }
};

}  // namespace ubep
