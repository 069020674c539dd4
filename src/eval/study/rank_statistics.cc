// SPDX-License-Identifier: Apache-2.0
#include "eval/study/rank_statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "base/expect.h"

namespace kvspan {
namespace {

struct Moments {
  double xx = 0.0, xy = 0.0, yy = 0.0;
};

Moments centred(std::span<const double> x, std::span<const double> y) {
  KVSPAN_EXPECT(x.size() == y.size(), "pairs");
  const auto n = static_cast<double>(x.size());
  const double mean_x = std::accumulate(x.begin(), x.end(), 0.0) / n;
  const double mean_y = std::accumulate(y.begin(), y.end(), 0.0) / n;
  Moments out;
  for (std::size_t i = 0; i < x.size(); ++i) {
    out.xx += (x[i] - mean_x) * (x[i] - mean_x);
    out.xy += (x[i] - mean_x) * (y[i] - mean_y);
    out.yy += (y[i] - mean_y) * (y[i] - mean_y);
  }
  return out;
}

std::vector<double> ranks(std::span<const double> values) {
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return values[a] < values[b]; });
  std::vector<double> out(values.size());
  for (std::size_t begin = 0; begin < order.size();) {
    std::size_t end = begin + 1;
    while (end < order.size() && values[order[end]] == values[order[begin]]) ++end;
    for (std::size_t i = begin; i < end; ++i) {
      out[order[i]] = 0.5 * static_cast<double>(begin + end - 1);
    }
    begin = end;
  }
  return out;
}

}  // namespace

double spearman(std::span<const double> a, std::span<const double> b) {
  const Moments moments = centred(ranks(a), ranks(b));
  if (!(moments.xx > 0.0 && moments.yy > 0.0)) return std::numeric_limits<double>::quiet_NaN();
  return moments.xy / std::sqrt(moments.xx * moments.yy);
}

double least_squares_slope(std::span<const double> x, std::span<const double> y) {
  const Moments moments = centred(x, y);
  return moments.xx > 0.0 ? moments.xy / moments.xx : std::numeric_limits<double>::quiet_NaN();
}

}  // namespace kvspan
