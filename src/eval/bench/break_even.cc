// SPDX-License-Identifier: Apache-2.0
#include "eval/bench/break_even.h"

#include "base/expect.h"

namespace kvspan {
namespace {

constexpr double kMostTimesLast = 1000.0;

double excess(const CostPoint& point) {
  return point.own - point.other;
}

}  // namespace

std::optional<BreakEven> break_even(std::span<const CostPoint> points) {
  KVSPAN_EXPECT(!points.empty(), "a point");
  std::size_t pays = points.size();  // from this point on
  while (pays > 0 && excess(points[pays - 1]) < 0.0) --pays;
  if (pays == 0) return BreakEven{points.front().length, false};
  if (pays < points.size()) {
    const CostPoint &before = points[pays - 1], &after = points[pays];
    const double share = excess(before) / (excess(before) - excess(after));
    return BreakEven{before.length + share * (after.length - before.length), false};
  }
  // Least squares of the excess over the length.
  const auto half = points.subspan(points.size() / 2);
  double length = 0.0, level = 0.0;
  for (const CostPoint& point : half) {
    length += point.length;
    level += excess(point);
  }
  const auto n = static_cast<double>(half.size());
  length /= n;
  level /= n;
  double xy = 0.0, xx = 0.0;
  for (const CostPoint& point : half) {
    xy += (point.length - length) * (excess(point) - level);
    xx += (point.length - length) * (point.length - length);
  }
  if (xx == 0.0 || xy >= 0.0) return std::nullopt;
  const double meets = length - level * xx / xy;
  const double last = points.back().length;
  if (meets > kMostTimesLast * last) return std::nullopt;
  return BreakEven{meets < last ? last : meets, true};
}

}  // namespace kvspan
