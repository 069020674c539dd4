// SPDX-License-Identifier: Apache-2.0
// Running sums of outer products of rows that come in pairs, left and right, in f64, for second
// moments between them. The matrix is cut into strips of rows that a team shares out.
// Promise: every entry adds its products in order of the rows, so the sums do not depend on how
// rows are split over calls or strips over threads.
// Cost: left width x right width multiply-adds a pair; 8 bytes for each entry.
#pragma once

#include <cstddef>
#include <vector>

#include "linalg/panel.h"

namespace kvspan {

class CrossSum {
 public:
  CrossSum(std::size_t left_width, std::size_t right_width);

  std::size_t strips() const noexcept;

  // Adds rows [begin, end) of both to strip `strip`. In each of them the columns up to the next
  // multiple of 8 beyond the width are 0. Every strip must see the same rows; different strips may
  // run at the same time.
  void add(std::size_t strip, const detail::Panel& left, const detail::Panel& right,
           std::size_t begin, std::size_t end) noexcept;
  // The sums over `count`: how many rows add() has been given, which the caller counts.
  // [left width * right width], row-major, rows are the left side's.
  std::vector<float> moment(double count) const;

 private:
  std::size_t left_width_, right_width_;
  detail::Panel products_;
};

}  // namespace kvspan
