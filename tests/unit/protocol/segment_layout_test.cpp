#include "protocol/segment_layout.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "base/entry.hpp"
#include "base/math.hpp"
#include "protocol/protocols.hpp"
#include "support/random.hpp"

namespace ubep {
namespace {

struct Part {
  std::string name;
  Range range;
  std::uint64_t alignment;
  int slot = -1;
  std::uint64_t exact_bytes = range.bytes;  // without the room to whole lines
};

GroupConfig random_config(std::uint64_t seed) {
  test::Random random(seed);
  GroupConfig config;
  config.size = random.between(1, kMaxRanks);
  config.slots = random.between(1, kMaxSlots);
  config.max_tokens = random.one_in(8) ? 0 : random.between(1, 300);
  config.max_topk = random.between(1, kMaxTopk);
  config.max_stride = 64 * static_cast<std::uint64_t>(random.between(1, 200));
  std::vector<std::int32_t> owner;
  const int experts = random.between(1, 100);
  for (int e = 0; e < experts; ++e) owner.push_back(random.below(config.size));
  config.experts = ExpertMap(owner, config.size);
  config.push = random.one_in(2);
  config.bsp = config.push && random.one_in(2);
  config.returns = config.push && random.one_in(2);
  config.relay = config.returns && random.one_in(2);
  config.max_row_bytes = config.max_stride - static_cast<std::uint64_t>(random.below(64));
  if (config.push) config.protocol = static_cast<Protocol>(random.between(1, 7));
  config.checksum_rows = random.below(4);
  config.expert_capacity = random.one_in(2) ? random.between(1, 300) : 0;
  return config;
}

// Everything that a rank or a peer writes or reads, at its largest.
std::vector<Part> parts_of(const GroupConfig& config, const SegmentLayout& layout, int rank) {
  const auto size = static_cast<std::uint64_t>(config.size);
  std::vector<Part> parts{{"fabric header", {0, kFabricHeaderBytes}, 1}};
  for (std::uint64_t q = 0; q < 4 * static_cast<std::uint64_t>(config.slots); ++q) {
    parts.push_back({"op", {layout.op(q), sizeof(OpLine)}, kLineBytes});
  }
  const auto groups = static_cast<std::uint64_t>(std::max(1, config.experts.num_local(rank)));
  const auto tokens = static_cast<std::uint64_t>(config.max_tokens);
  for (int s = 0; s < config.slots; ++s) {
    for (const std::uint64_t word : {layout.pub(s), layout.out(s), layout.done(s)}) {
      parts.push_back({"word", {word, kLineBytes}, kLineBytes, s});
    }
    if (config.push) {
      parts.push_back({"word", {layout.base(s), kLineBytes}, kLineBytes, s});
      for (int q = 0; q < config.size; ++q) {
        parts.push_back({"word", {layout.sent(s, q), kLineBytes}, kLineBytes, s});
      }
      const auto experts = static_cast<std::uint64_t>(config.experts.num_experts());
      parts.push_back({"counts", layout.counts(s, std::max(size, experts)), kLineBytes, s});
    }
    if (config.relay) {
      for (int q = 0; q < config.size; ++q) {
        parts.push_back({"word", {layout.relayed(s, q), kLineBytes}, kLineBytes, s});
        parts.push_back({"word", {layout.summed(s, q), kLineBytes}, kLineBytes, s});
      }
      parts.push_back({"missing", layout.missing(s), kLineBytes, s});
      parts.push_back({"lacking", layout.lacking(s), 8, s});
    }
    if (config.push && config.protocol == Protocol::sentinel) {
      parts.push_back({"word", {layout.armed(s), kLineBytes}, kLineBytes, s});
      parts.push_back({"marks", layout.marks(s), kLineBytes, s});
    }
    parts.push_back({"offsets", layout.offsets(s), kLineBytes, s});
    // Rounded up where non-temporal stores may write whole lines.
    const std::uint64_t bytes = layout.max_entries() * sizeof(Entry);
    const std::uint64_t entries = layout.entries(s, 0, 0).offset;
    parts.push_back({"entries", {entries, round_up(bytes, kLineBytes)}, kLineBytes, s, bytes});
    const std::uint64_t bases = layout.bases(s, 0, groups).offset;
    parts.push_back({"bases", {bases, size * groups * 4}, kLineBytes, s});
    parts.push_back({"out of experts", {layout.out_expert(s, 0), groups * 8}, kLineBytes, s});
    parts.push_back({"x", layout.x(s, config.max_stride, 0, tokens), kPageBytes, s});
    parts.push_back({"y", layout.y(s, config.max_stride, 0, config.max_rows(rank)), kPageBytes, s});
  }
  return parts;
}

// "" or what is wrong.
std::string overlap_of(std::vector<Part> parts, std::uint64_t bytes) {
  std::sort(parts.begin(), parts.end(),
            [](const Part& a, const Part& b) { return a.range.offset < b.range.offset; });
  std::uint64_t end = 0;
  for (const Part& part : parts) {
    if (part.range.bytes == 0) continue;
    if (part.range.offset < end) return part.name + " overlaps what is before it";
    if (part.range.offset % part.alignment != 0) return part.name + " is not aligned";
    end = part.range.offset + part.range.bytes;
  }
  return end <= bytes ? "" : "the last part ends outside";
}

TEST(SegmentLayoutTest, PartsAreAlignedInsideAndApart) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    const GroupConfig config = random_config(seed);
    for (const int rank : {0, config.size - 1}) {
      const SegmentLayout layout(config, rank);
      const std::vector<Part> parts = parts_of(config, layout, rank);
      ASSERT_EQ(overlap_of(parts, layout.bytes()), "") << "seed " << seed;
      ASSERT_EQ(layout.bytes() % kPageBytes, 0U) << "seed " << seed;
    }
  }
}

// Of the inbox, at its largest.
std::vector<Part> inbox_parts_of(const GroupConfig& config, const SegmentLayout& layout, int rank) {
  std::vector<Part> parts;
  const RowProtocol& protocol = find_protocol(config.protocol);
  const std::uint64_t stride = protocol.wire_stride(config.max_row_bytes);
  const std::uint64_t rows = config.max_rows_from_source(rank, config.max_topk);
  for (int s = 0; s < config.slots; ++s) {
    if (!protocol.decodes() || config.bsp) {
      parts.push_back({"rows", layout.rows(s, config.max_stride, 0, config.max_rows(rank)), 1, s});
    }
    if (config.bsp || (config.returns && !protocol.decodes())) {
      parts.push_back({"back", layout.back(s, config.max_stride, 0, layout.max_entries()), 1, s});
    }
    if (protocol.decodes() && config.returns) {
      const std::uint64_t entries = layout.max_entries();
      parts.push_back({"back windows", layout.back_wire(s, 0, entries * stride), kWireGrid, s});
      if (protocol.has_checksums() && entries != 0) {
        const std::uint64_t first = layout.back_checksum(s, 0).offset;
        parts.push_back({"back checksums", {first, entries * 8}, 8, s});
      }
    }
    for (int q = 0; q < config.size && config.relay; ++q) {
      const auto tokens = static_cast<std::uint64_t>(config.max_tokens);
      parts.push_back({"relayed", layout.relay(s, q, config.max_stride, 0, tokens), kPageBytes, s});
    }
    for (int q = 0; q < config.size && protocol.decodes(); ++q) {
      parts.push_back({"window", layout.wire(s, q, 0, rows * stride), kWireGrid, s});
      if (!protocol.has_checksums() || rows == 0) continue;
      const auto batches =
          (rows - 1) / protocol.batch_rows(config.checksum_rows, static_cast<std::uint32_t>(rows));
      const Range first = layout.checksum(s, q, 0);
      const Range last = layout.checksum(s, q, batches);
      parts.push_back({"checksums", {first.offset, last.offset + 8 - first.offset}, 8, s});
    }
  }
  return parts;
}

TEST(SegmentLayoutTest, PartsOfTheInboxAreAlignedInsideAndApart) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    const GroupConfig config = random_config(seed);
    if (!config.push) continue;
    const SegmentLayout layout(config, config.size - 1);
    const std::vector<Part> parts = inbox_parts_of(config, layout, config.size - 1);
    ASSERT_EQ(overlap_of(parts, layout.inbox_bytes()), "") << "seed " << seed;
    for (const Part& part : parts) {
      const auto inside = [&](const char* name, const Range& all) {
        const std::uint64_t end = part.range.offset + part.range.bytes;
        return part.name != name || part.range.bytes == 0 ||
               (part.range.offset >= all.offset && end <= all.offset + all.bytes);
      };
      EXPECT_TRUE(inside("window", layout.windows(part.slot))) << seed;
      EXPECT_TRUE(inside("checksums", layout.checksums(part.slot))) << seed;
      EXPECT_TRUE(inside("back windows", layout.back_windows(part.slot))) << seed;
      EXPECT_TRUE(inside("back checksums", layout.back_checksums(part.slot))) << seed;
    }
  }
}

// A peer finds x without knowing the owner's experts, and all x areas can be mapped side by side.
TEST(SegmentLayoutTest, AllButYLieAlikeOnAllRanks) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    const GroupConfig config = random_config(seed);
    const SegmentLayout first(config, 0);
    for (int rank = 1; rank < config.size; ++rank) {
      const SegmentLayout layout(config, rank);
      for (int s = 0; s < config.slots; ++s) {
        ASSERT_EQ(layout.x(s, 64, 0, 0).offset, first.x(s, 64, 0, 0).offset) << "seed " << seed;
      }
      ASSERT_EQ(layout.x_area_bytes(), first.x_area_bytes()) << "seed " << seed;
    }
    ASSERT_EQ(first.x_area_bytes() % kPageBytes, 0U);
    ASSERT_GE(first.x_area_bytes(),
              static_cast<std::uint64_t>(config.max_tokens) * config.max_stride);
  }
}

// Fetches are called off by these: no part may be missing, and no word or other slot be hit.
TEST(SegmentLayoutTest, TheAreasOfASlotAreAllThatPeersReadThere) {
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    const GroupConfig config = random_config(seed);
    const SegmentLayout layout(config, 0);
    for (int slot = 0; slot < config.slots; ++slot) {
      for (const Part& part : parts_of(config, layout, 0)) {
        const bool is_word = part.name == "word" || part.name == "out of experts";
        const bool read = part.slot == slot && !is_word;
        const auto areas = layout.slot_areas(slot);
        const bool inside = std::any_of(areas.begin(), areas.end(), [&](const Range& area) {
          return part.range.offset >= area.offset &&
                 part.range.offset + part.exact_bytes <= area.offset + area.bytes;
        });
        const bool apart = std::all_of(areas.begin(), areas.end(), [&](const Range& area) {
          return part.range.offset + part.exact_bytes <= area.offset ||
                 part.range.offset >= area.offset + area.bytes;
        });
        ASSERT_TRUE(read ? inside : apart) << part.name << ", seed " << seed;
      }
    }
  }
}

TEST(SegmentLayoutTest, OpLinesGoRound) {
  GroupConfig config;
  config.slots = 3;
  config.experts = ExpertMap({0}, 1);
  const SegmentLayout layout(config, 0);
  for (std::uint64_t seq = 1; seq <= 30; ++seq) {
    EXPECT_EQ(layout.op(seq), layout.op(seq + 12));
    for (std::uint64_t other = seq + 1; other < seq + 12; ++other) {
      EXPECT_NE(layout.op(seq), layout.op(other));
    }
  }
}

GroupConfig pinned_config() {
  GroupConfig config;
  config.size = 4;
  config.slots = 2;
  config.max_tokens = 100;
  config.max_topk = 8;
  config.max_stride = 14336;                        // 7168 bf16
  config.experts = ExpertMap(block_map(10, 4), 4);  // 3, 3, 2, 2
  return config;
}

// The wire layout. A change here is a change of kWireVersion.
TEST(SegmentLayoutTest, WireLayout) {
  const SegmentLayout layout(pinned_config(), 0);
  EXPECT_EQ(layout.op(0), 512U);
  EXPECT_EQ(layout.op(7), 512U + 7 * 64);
  EXPECT_EQ(layout.pub(0), 1024U);
  EXPECT_EQ(layout.out(0), 1088U);
  EXPECT_EQ(layout.done(0), 1152U);
  EXPECT_EQ(layout.pub(1), 1216U);
  EXPECT_EQ(layout.offsets(0).offset, 1408U);
  EXPECT_EQ(layout.offsets(0).bytes, 20U);
  EXPECT_EQ(layout.max_entries(), 800U);
  EXPECT_EQ(layout.entries(0, 0, 0).offset, 1472U);
  EXPECT_EQ(layout.entries(0, 5, 3).offset, 1472U + 60);
  EXPECT_EQ(layout.entries(0, 5, 3).bytes, 36U);
  EXPECT_EQ(layout.offsets(1).offset, 11072U);
  EXPECT_EQ(layout.entries(1, 0, 0).offset, 11136U);
}

TEST(SegmentLayoutTest, WireLayoutOfRowsAndBases) {
  const SegmentLayout layout(pinned_config(), 0);
  EXPECT_EQ(layout.x(0, 14336, 0, 0).offset, 24576U);
  EXPECT_EQ(layout.x_area_bytes(), 1'433'600U);  // 100 rows: 350 whole pages
  EXPECT_EQ(layout.x(1, 14336, 0, 0).offset, 24576U + 1'433'600);
  EXPECT_EQ(layout.x(0, 64, 9, 2).offset, 24576U + 9 * 64);
  EXPECT_EQ(layout.x(0, 64, 9, 2).bytes, 128U);
  EXPECT_EQ(layout.bases(0, 0, 3).offset, 2'891'776U);
  EXPECT_EQ(layout.bases(0, 2, 3).offset, 2'891'776U + 24);
  EXPECT_EQ(layout.bases(0, 2, 3).bytes, 12U);
  EXPECT_EQ(layout.out_expert(0, 0), 2'891'776U + 64);
  EXPECT_EQ(layout.out_expert(0, 2), 2'891'776U + 64 + 16);
  EXPECT_EQ(layout.bases(1, 0, 3).offset, 2'891'776U + 128);
  EXPECT_EQ(layout.y(0, 64, 0, 0).offset, 2'895'872U);
  // 4 sources x 100 tokens x 8 choices, and 255 padding rows for each of 3 experts.
  EXPECT_EQ(layout.y_area_bytes(), round_up((3200U + 765) * 14336, 4096));
  EXPECT_EQ(layout.y(1, 64, 3, 1).offset, 2'895'872U + layout.y_area_bytes() + 192);
  EXPECT_EQ(layout.bytes(), 2'895'872U + 2 * layout.y_area_bytes());
}

TEST(SegmentLayoutTest, SizesThatDoNotFitAreRefused) {
  GroupConfig config = pinned_config();
  config.max_stride = std::uint64_t{1} << 60;
  EXPECT_THROW(SegmentLayout(config, 0), Error);
}

}  // namespace
}  // namespace ubep
