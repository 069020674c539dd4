// SPDX-License-Identifier: Apache-2.0
// A scale from numbers to coordinates, with round ticks.
#pragma once

#include <string>
#include <vector>

namespace kvspan {

struct Axis {
  std::string label, unit;  // shown as "label (unit)"; the unit of a bare count is what is counted
  bool log = false;
  std::vector<double> include{};  // numbers that the range has to hold besides the data
};
// "KL to full (nats), log scale"
std::string axis_title(const Axis& axis);

class Scale {
 public:
  // A range around finite `values`; on a log axis those above 0. Without any: 0..1, or 0.1..1.
  Scale(const Axis& axis, const std::vector<double>& values);

  // Whether a value has a place: finite, and positive on a log axis.
  bool shows(double value) const noexcept;
  // 0 at the low end, 1 at the high end.
  double at(double value) const noexcept;
  // Round numbers within the range, ascending, `most` at most but no fewer than 2 where there are.
  std::vector<double> ticks(std::size_t most) const;

 private:
  bool log_;
  double low_, high_;  // logarithms on a log axis
};

std::string tick_text(double value);

}  // namespace kvspan
