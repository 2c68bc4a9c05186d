// find_places(): a vector of rows, each with its own four-way search; the three pivots of each step
// are gathered. Machines without a gather do it by single loads.
#include "memory/prefix_search.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "memory/prefix_search.cpp"
#include <hwy/foreach_target.h>  // compiles this file once per instruction set
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace ubep::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class D, class V>
HWY_INLINE V search([[maybe_unused]] D d, const std::uint32_t* sums, std::uint32_t last, V row) {
  const hn::RebindToSigned<D> ds;
  const auto end = hn::Set(d, last);
  auto place = hn::Zero(d);
  for (std::uint32_t rest = last; rest > 1;) {
    rest = (rest + 3) / 4;
    const auto quarter = hn::Set(d, rest);
    auto pivot = place;
    for (int i = 0; i < 3; ++i) {
      pivot = hn::Add(pivot, quarter);
      const auto sum = hn::GatherIndex(d, sums, hn::BitCast(ds, hn::Min(pivot, end)));
      const auto is_before = hn::Eq(hn::Min(sum, row), sum);  // not all Highways have unsigned Le
      place = hn::Add(place, hn::IfThenElseZero(is_before, quarter));
    }
  }
  return place;
}

void search_all(std::span<const std::uint32_t> begin, std::span<const std::uint32_t> rows,
                std::uint32_t* places) {
  const hn::ScalableTag<std::uint32_t> d;
  const std::size_t lanes = hn::Lanes(d);
  const auto last = static_cast<std::uint32_t>(begin.size() - 1);
  std::size_t i = 0;
  for (; i + lanes <= rows.size(); i += lanes) {
    hn::StoreU(search(d, begin.data(), last, hn::LoadU(d, rows.data() + i)), d, places + i);
  }
  for (; i < rows.size(); ++i) places[i] = find_place(begin, rows[i]);
}

}  // namespace ubep::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ubep {
HWY_EXPORT(search_all);

void find_places(std::span<const std::uint32_t> begin, std::span<const std::uint32_t> rows,
                 std::uint32_t* places) {
  HWY_DYNAMIC_DISPATCH(search_all)(begin, rows, places);
}

}  // namespace ubep
#endif
