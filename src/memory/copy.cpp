#include "memory/copy.hpp"

#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#if defined(__SANITIZE_THREAD__)
#define UBEP_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define UBEP_TSAN 1
#endif
#endif

namespace ubep {

void copy_plain(std::byte* dst, const std::byte* src, std::size_t bytes) {
  if (bytes != 0) std::memcpy(dst, src, bytes);
}

#if defined(__x86_64__) && !defined(UBEP_TSAN)  // TSan does not see non-temporal stores
namespace {

void stream_line(std::byte* dst, const std::byte* src) {
  auto* to = reinterpret_cast<__m128i*>(dst);
  const auto* from = reinterpret_cast<const __m128i*>(src);
  const __m128i a = _mm_loadu_si128(from);
  const __m128i b = _mm_loadu_si128(from + 1);
  const __m128i c = _mm_loadu_si128(from + 2);
  const __m128i d = _mm_loadu_si128(from + 3);
  _mm_stream_si128(to, a);
  _mm_stream_si128(to + 1, b);
  _mm_stream_si128(to + 2, c);
  _mm_stream_si128(to + 3, d);
}

}  // namespace

void copy_streaming(std::byte* dst, const std::byte* src, std::size_t bytes) {
  const std::size_t whole = bytes / 64 * 64;
  for (std::size_t i = 0; i < whole; i += 64) stream_line(dst + i, src + i);
  if (whole == bytes) return;
  alignas(64) std::byte line[64] = {};
  std::memcpy(line, src + whole, bytes - whole);
  stream_line(dst + whole, line);  // a partial line would be written back in pieces
}

void store_fence() { _mm_sfence(); }
#else
void copy_streaming(std::byte* dst, const std::byte* src, std::size_t bytes) {
  copy_plain(dst, src, bytes);
}

void store_fence() {}  // plain stores are ordered by the release store of the flag
#endif

}  // namespace ubep
