// SPDX-License-Identifier: Apache-2.0
// What calls are refused, whatever keeps the rows: caches of the host and of a device ask the same.
#include "method/check_call.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace kvspan::testing {
namespace check_call_test {

std::string error_of(const Status& status) {
  return status ? "" : status.error().message;
}
bool names(const Status& status, const std::string& part) {
  return error_of(status).find(part) != std::string::npos;
}

TEST(CheckCall, RowsOfACacheThatCountsTokensGoOnWhereItIs) {
  using P = std::vector<std::int32_t>;
  EXPECT_TRUE(check_next_positions(0, P{}, 7));
  EXPECT_TRUE(check_next_positions(0, P{0, 1, 2}, 0));
  EXPECT_TRUE(check_next_positions(0, P{7, 8}, 7));
  EXPECT_TRUE(names(check_next_positions(1, P{5, 6}, 0), "layer 1: position 5 of row 0; allowed: 0"));
  EXPECT_TRUE(names(check_next_positions(0, P{7, 9}, 7), "position 9 of row 1; allowed: 8"));
  EXPECT_TRUE(names(check_next_positions(0, P{6, 7}, 7), "position 6 of row 0; allowed: 7"));
}

TEST(CheckCall, QueriesOfACacheThatCountsTokensAreAtItsEnd) {
  using P = std::vector<std::int32_t>;
  EXPECT_TRUE(check_last_positions(0, P{}, 7));
  EXPECT_TRUE(check_last_positions(0, P{6}, 7));
  EXPECT_TRUE(check_last_positions(0, P{0, 1, 2, 3, 4, 5, 6}, 7));
  EXPECT_TRUE(names(check_last_positions(2, P{5}, 7), "layer 2: position 5 of query 0; allowed: 6"));
  EXPECT_TRUE(names(check_last_positions(0, P{7}, 7), "position 7 of query 0; allowed: 6"));
  EXPECT_TRUE(names(check_last_positions(0, P{4, 6}, 7), "position 4 of query 0; allowed: 5"));
  EXPECT_TRUE(names(check_last_positions(0, P{0, 1}, 1), "2 queries at the end of 1 tokens"));
}

TEST(CheckCall, AttentionNeedsTokens) {
  EXPECT_TRUE(check_held(3, 1));
  EXPECT_TRUE(names(check_held(3, 0), "layer 3 holds no tokens"));
}

TEST(CheckCall, ShapesOfEveryViewAreThoseOfTheLayer) {
  LayerShape layer;
  layer.query_heads = 4;
  layer.kv_heads = 2;
  layer.key_dim = 8;
  layer.value_dim = 6;
  std::vector<float> numbers(3 * 4 * 8, 1.0f);
  const std::vector<std::int32_t> positions{0, 1, 2};
  const auto view = [&](std::size_t n, std::size_t heads, std::size_t dim) {
    return TensorView<const float, 3>(numbers.data(), {n, heads, dim});
  };
  EXPECT_TRUE(check_rows(layer, 0, {view(3, 2, 8), view(3, 2, 6), positions}));
  EXPECT_TRUE(names(check_rows(layer, 0, {view(3, 4, 8), view(3, 2, 6), positions}), "keys are"));
  EXPECT_TRUE(names(check_rows(layer, 0, {view(3, 2, 8), view(3, 2, 8), positions}), "values are"));
  EXPECT_TRUE(names(check_rows(layer, 0, {view(2, 2, 8), view(3, 2, 6), positions}), "keys are"));
  const TensorView<float, 3> out(numbers.data(), {3, 4, 6}), few(numbers.data(), {3, 2, 6});
  EXPECT_TRUE(check_queries(layer, 0, {view(3, 4, 8), positions}, out));
  EXPECT_TRUE(names(check_queries(layer, 0, {view(3, 2, 8), positions}, out), "queries are"));
  EXPECT_TRUE(names(check_queries(layer, 0, {view(3, 4, 8), positions}, few), "outputs are"));
}

TEST(CheckCall, NumbersAreFiniteAndBelowTheLimit) {
  std::vector<float> numbers(2 * 2 * 4, 1.0f);
  const TensorView<const float, 3> rows(numbers.data(), {2, 2, 4});
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(check_numbers("keys", 0, rows, kF16Limit));
  numbers[13] = -65520.0f;  // row 1, head 1, place 1
  EXPECT_TRUE(check_numbers("keys", 0, rows, infinity));
  EXPECT_TRUE(names(check_numbers("keys", 0, rows, kF16Limit), "row 1, head 1, hold -65520 at 1"));
  for (const float bad : {infinity, -infinity, std::numeric_limits<float>::quiet_NaN()}) {
    numbers[13] = bad;
    EXPECT_FALSE(check_numbers("keys", 0, rows, infinity));
  }
}

}  // namespace check_call_test
}  // namespace kvspan::testing
