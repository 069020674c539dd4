// SPDX-License-Identifier: Apache-2.0
#include "cache/rows/row_block.h"

#include <algorithm>
#include <numeric>
#include <span>

namespace kvspan {
namespace {

TensorView<const float, 3> slice(const std::vector<float>& rows, std::size_t first, std::size_t n,
                                 std::int32_t heads, std::int32_t dim) {
  const auto h = static_cast<std::size_t>(heads), d = static_cast<std::size_t>(dim);
  return {rows.data() + first * h * d, {n, h, d}};
}

TensorView<const float, 2> head_of(const std::vector<float>& rows, std::size_t n,
                                   std::int32_t heads, std::int32_t head, std::int32_t dim) {
  const auto d = static_cast<std::size_t>(dim);
  return {rows.data() + static_cast<std::size_t>(head) * d,
          {n, d},
          {static_cast<std::size_t>(heads) * d, 1}};
}

std::vector<float> in_order(const std::vector<float>& rows, const std::vector<std::size_t>& order) {
  const std::size_t width = rows.size() / order.size();
  std::vector<float> out;
  out.reserve(rows.size());
  for (const std::size_t i : order) {
    const auto row = rows.begin() + static_cast<std::ptrdiff_t>(i * width);
    out.insert(out.end(), row, row + static_cast<std::ptrdiff_t>(width));
  }
  return out;
}

}  // namespace

KvRows RowBlock::rows(std::size_t first, std::size_t n) const {
  KvRows view;
  view.keys = slice(keys, first, n, heads, key_dim);
  view.values = slice(values, first, n, heads, value_dim);
  view.positions = std::span(positions).subspan(first, n);
  return view;
}

TensorView<const float, 2> RowBlock::keys_of(std::int32_t head) const {
  return head_of(keys, size(), heads, head, key_dim);
}

TensorView<const float, 2> RowBlock::values_of(std::int32_t head) const {
  return head_of(values, size(), heads, head, value_dim);
}

void RowBlock::grow(std::size_t n) {
  positions.resize(positions.size() + n);
  keys.resize(size() * key_width());
  values.resize(size() * value_width());
}

void RowBlock::sort() {
  if (std::is_sorted(positions.begin(), positions.end())) return;
  std::vector<std::size_t> order(size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return positions[a] < positions[b]; });
  keys = in_order(keys, order);
  values = in_order(values, order);
  std::sort(positions.begin(), positions.end());
}

}  // namespace kvspan
