// SPDX-License-Identifier: Apache-2.0
#include "linalg/cross_sum.h"

#include <algorithm>

namespace kvspan {
namespace {

constexpr std::size_t kLeftColumns = 16;  // of a strip
// Pairs passed over a tile at a time: two columns' worth of their cache lines stay in the first
// cache.
constexpr std::size_t kPairsAtOnce = 128;

}  // namespace

CrossSum::CrossSum(std::size_t left_width, std::size_t right_width)
    : left_width_(left_width), right_width_(right_width), products_(left_width, right_width) {}

std::size_t CrossSum::strips() const noexcept {
  return (detail::padded(left_width_) + kLeftColumns - 1) / kLeftColumns;
}

void CrossSum::add(std::size_t strip, const detail::Panel& left, const detail::Panel& right,
                   std::size_t begin, std::size_t end) noexcept {
  const std::size_t top = strip * kLeftColumns;
  const std::size_t rows = std::min(kLeftColumns, detail::padded(left_width_) - top);
  for (std::size_t row = begin; row < end; row += kPairsAtOnce) {
    const std::size_t count = std::min(kPairsAtOnce, end - row);
    detail::dense_kernels().add_outer(products_.row(top), products_.stride(), left.row(row) + top,
                                      left.stride(), right.row(row), right.stride(), rows,
                                      detail::padded(right_width_), count);
  }
}

std::vector<float> CrossSum::moment(double count) const {
  std::vector<float> out(left_width_ * right_width_);
  for (std::size_t i = 0; i < left_width_; ++i) {
    for (std::size_t j = 0; j < right_width_; ++j) {
      out[i * right_width_ + j] = static_cast<float>(products_(i, j) / count);
    }
  }
  return out;
}

}  // namespace kvspan
