// Compares what the library returned with what the reference expects.
//
// Each function returns "" or the first difference in one line (row, column, got, want).
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "support/reference.hpp"
#include "ubep/dispatch.hpp"
#include "ubep/types.hpp"

namespace ubep::test {

// Handle::row_weights() of an expert layout.
std::string compare_row_weights(std::span<const float> got, const ExpectedReceived& want);
// Handle::row_choices() of a layout with a row per choice.
std::string compare_row_choices(std::span<const std::int32_t> got, const ExpectedReceived& want);
// `out`: the caller's tensor that rows were written into, if any.
std::string compare_received(const Received& got, const ExpectedReceived& want,
                             const Problem& problem, const Rows& out = {});
// Received::mapped and its lists: all peers' tokens as one tensor, as `rank` sees them.
std::string compare_mapped(const Received& got, const Problem& problem, int rank, int max_tokens);
// `want` is dense [tokens, hidden]. Rows of tokens whose `valid` is 0 are not looked at; an empty
// list means that all are valid.
std::string compare_out(const Rows& got, const std::vector<std::byte>& want,
                        const std::vector<std::uint8_t>& valid = {});

// Order-independent of NaN payloads: equal results have equal hashes.
class Hash {
 public:
  void add(DType dtype, const std::byte* elements, std::size_t count);
  void add(std::uint64_t number);
  std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 0xcbf29ce484222325ULL;
};

}  // namespace ubep::test
