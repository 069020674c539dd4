// SPDX-License-Identifier: Apache-2.0
#include "method/check_call.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "base/fail.h"

namespace kvspan {
namespace {

template <class T>
Status check_view(const char* what, int layer, const TensorView<T, 3>& view, std::size_t n,
                  std::int32_t heads, std::int32_t dim) {
  const auto h = static_cast<std::size_t>(heads), d = static_cast<std::size_t>(dim);
  if (view.shape[0] != n || view.shape[1] != h || view.shape[2] != d) {
    return fail(ErrorCode::kInvalidArgument,
                "layer {}: {} are [{}, {}, {}]; allowed: [{}, {}, {}], as positions and shape say",
                layer, what, view.shape[0], view.shape[1], view.shape[2], n, h, d);
  }
  if (n > 0 && (view.data == nullptr || view.strides[2] != 1)) {
    return fail(ErrorCode::kInvalidArgument,
                "layer {}: {} have {}; allowed: memory with the numbers of a head side by side",
                layer, what, view.data == nullptr ? "no memory" : "a last stride other than 1");
  }
  return {};
}

Status check_positions(int layer, std::span<const std::int32_t> positions) {
  std::int32_t least = 0;
  for (std::size_t i = 0; i < positions.size(); ++i) {
    if (positions[i] < least || positions[i] >= kPositionLimit) {
      return fail(ErrorCode::kInvalidArgument,
                  "layer {}: position {} of row {}; allowed: {} to {}, increasing", layer,
                  positions[i], i, least, kPositionLimit - 1);
    }
    least = positions[i] + 1;
  }
  return {};
}

Status check_positions_from(const char* what, int layer, std::span<const std::int32_t> positions,
                            std::int32_t first) {
  for (std::size_t i = 0; i < positions.size(); ++i) {
    if (positions[i] == first + static_cast<std::int32_t>(i)) continue;
    return fail(ErrorCode::kInvalidArgument,
                "layer {}: position {} of {} {}; allowed: {}, as this cache holds positions from 0 on "
                "without gaps",
                layer, positions[i], what, i, first + static_cast<std::int32_t>(i));
  }
  return {};
}

// Magnitudes of floats compare as their bits do, with infinity and NaN above all; integers so that
// the loop needs no order of operations and becomes wide instructions.
bool all_below(const float* numbers, std::size_t n, std::uint32_t limit) noexcept {
  std::uint32_t most = 0;
  for (std::size_t i = 0; i < n; ++i) {
    most = std::max(most, std::bit_cast<std::uint32_t>(numbers[i]) & 0x7fffffffu);
  }
  return most < limit;
}

}  // namespace

Status check_layer(const CacheShape& shape, int layer) {
  if (layer >= 0 && static_cast<std::size_t>(layer) < shape.layers.size()) return {};
  return fail(ErrorCode::kInvalidArgument, "layer {}; allowed: 0 to {}", layer,
              shape.layers.size() - 1);
}

Status check_rows(const LayerShape& shape, int layer, const KvRows& rows) {
  const std::size_t n = rows.positions.size();
  KVSPAN_CHECK_OK(check_view("keys", layer, rows.keys, n, shape.kv_heads, shape.key_dim));
  KVSPAN_CHECK_OK(check_view("values", layer, rows.values, n, shape.kv_heads, shape.value_dim));
  return check_positions(layer, rows.positions);
}

Status check_queries(const LayerShape& shape, int layer, const Queries& queries,
                     const TensorView<float, 3>& out) {
  const std::size_t n = queries.positions.size();
  KVSPAN_CHECK_OK(check_view("queries", layer, queries.rows, n, shape.query_heads, shape.key_dim));
  KVSPAN_CHECK_OK(check_view("outputs", layer, out, n, shape.query_heads, shape.value_dim));
  return check_positions(layer, queries.positions);
}

Status check_held(int layer, std::int32_t next) {
  if (next > 0) return {};
  return fail(ErrorCode::kInvalidArgument,
              "layer {} holds no tokens to attend to; allowed: attend after append", layer);
}

Status check_next_positions(int layer, std::span<const std::int32_t> positions, std::int32_t next) {
  return check_positions_from("row", layer, positions, next);
}

Status check_last_positions(int layer, std::span<const std::int32_t> positions, std::int32_t next) {
  if (std::cmp_greater(positions.size(), next)) {
    return fail(ErrorCode::kInvalidArgument,
                "layer {}: {} queries at the end of {} tokens; allowed: attend after append", layer,
                positions.size(), next);
  }
  return check_positions_from("query", layer, positions,
                              next - static_cast<std::int32_t>(positions.size()));
}

std::size_t first_bad_row(const TensorView<const float, 3>& rows, std::size_t begin,
                          std::size_t end, float limit) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(limit);
  const bool dense = rows.strides[1] == rows.shape[2];
  for (std::size_t t = begin; t < end; ++t) {
    if (dense) {
      if (!all_below(rows.row(t, 0), rows.shape[1] * rows.shape[2], bits)) return t;
      continue;
    }
    for (std::size_t h = 0; h < rows.shape[1]; ++h) {
      if (!all_below(rows.row(t, h), rows.shape[2], bits)) return t;
    }
  }
  return end;
}

Status check_numbers(const char* what, int layer, const TensorView<const float, 3>& rows,
                     float limit) {
  const std::size_t bad = first_bad_row(rows, 0, rows.shape[0], limit);
  if (bad == rows.shape[0]) return {};
  for (std::size_t h = 0; h < rows.shape[1]; ++h) {
    for (std::size_t i = 0; i < rows.shape[2]; ++i) {
      const float number = rows.row(bad, h)[i];
      if (std::abs(number) < limit) continue;
      return fail(
          ErrorCode::kInvalidArgument,
          "layer {}: {} of row {}, head {}, hold {} at {}; allowed: finite numbers{}", layer, what,
          bad, h, number, i,
          std::isinf(limit) ? std::string() : fmt::format(" below {}, which f16 can store", limit));
    }
  }
  return {};
}

}  // namespace kvspan
