// SPDX-License-Identifier: Apache-2.0
#include "linalg/moment_sum.h"

#include <algorithm>

namespace kvspan {
namespace {

constexpr std::size_t kStripRows = 16;
// Rows passed over a tile at a time: two columns' worth of their cache lines stay in the first
// cache.
constexpr std::size_t kRowsAtOnce = 128;

}  // namespace

MomentSum::MomentSum(std::size_t width)
    : width_(width), products_(width, width), sums_(detail::padded(width)) {}

std::size_t MomentSum::strips() const noexcept {
  return (detail::padded(width_) + kStripRows - 1) / kStripRows;
}

void MomentSum::add(std::size_t strip, const detail::Panel& rows, std::size_t first,
                    std::size_t begin, std::size_t end) noexcept {
  const std::size_t top = (strips() - 1 - strip) * kStripRows;
  const std::size_t bottom = std::min(top + kStripRows, detail::padded(width_));
  for (std::size_t row = begin; row < end; row += kRowsAtOnce) {
    const std::size_t count = std::min(kRowsAtOnce, end - row);
    const double* from = rows.row(row) + first;
    detail::dense_kernels().add_outer(products_.row(top), products_.stride(), from + top,
                                      rows.stride(), from, rows.stride(), bottom - top, bottom,
                                      count);
    for (std::size_t r = 0; r < count; ++r) {
      for (std::size_t i = top; i < bottom; ++i) sums_[i] += from[r * rows.stride() + i];
    }
  }
}

std::vector<float> MomentSum::moment(double count) const {
  std::vector<float> out(width_ * width_);
  for (std::size_t i = 0; i < width_; ++i) {
    for (std::size_t j = 0; j <= i; ++j) {
      out[i * width_ + j] = out[j * width_ + i] = static_cast<float>(products_(i, j) / count);
    }
  }
  return out;
}

std::vector<float> MomentSum::mean(double count) const {
  std::vector<float> out(width_);
  for (std::size_t i = 0; i < width_; ++i) out[i] = static_cast<float>(sums_[i] / count);
  return out;
}

std::size_t spread_columns(std::size_t columns) noexcept {
  const std::size_t lines = detail::padded(columns) / detail::kPanelAlign;
  return (lines | 1) * detail::kPanelAlign;
}

}  // namespace kvspan
