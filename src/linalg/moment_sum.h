// SPDX-License-Identifier: Apache-2.0
// Running sums of rows and of their outer products, in f64, for means and second moments of
// activations. The matrix is cut into strips of rows that a team shares out; only entries on and
// below the diagonal (in blocks of 8) are summed.
// Promise: every entry adds its products in order of the rows, so the sums do not depend on how
// rows are split over calls or strips over threads.
// Cost: width^2 / 2 multiply-adds a row; 8 width^2 bytes.
#pragma once

#include <cstddef>
#include <vector>

#include "linalg/panel.h"

namespace kvspan {

class MomentSum {
 public:
  explicit MomentSum(std::size_t width);

  std::size_t width() const noexcept { return width_; }
  std::size_t strips() const noexcept;

  // Adds rows [begin, end) of columns [first, first + width) of `rows` to strip `strip`, the
  // largest strip first. `first` is a multiple of 8, and columns up to the next multiple of 8
  // beyond the width are 0. Every strip must see the same rows; different strips may run at the
  // same time.
  void add(std::size_t strip, const detail::Panel& rows, std::size_t first, std::size_t begin,
           std::size_t end) noexcept;
  // How many rows add() has been given, which the caller counts: `count` divides the sums.
  // [width * width], symmetric, row-major.
  std::vector<float> moment(double count) const;
  // [width]
  std::vector<float> mean(double count) const;

 private:
  std::size_t width_;
  detail::Panel products_;
  std::vector<double> sums_;
};

// Columns a panel of rows should have so that walking down a column meets every set of the cache:
// an odd number of cache lines.
std::size_t spread_columns(std::size_t columns) noexcept;

}  // namespace kvspan
