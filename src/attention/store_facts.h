// SPDX-License-Identifier: Apache-2.0
// What a certificate knows of each token that a query sees, whatever holds the token.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kvspan/cache.h"

namespace kvspan {

struct Seen {
  std::int32_t position = 0;
  double logit = 0.0;  // l^, of the row as it is stored, before soft cap and ALiBi
  // |l - l^| and |l^ - l~|: l of the row that was coded, l~ what attention computes.
  double coding = 0.0, drift = 0.0;
  const float* value = nullptr;       // v^
  double lost = 0.0, rounding = 0.0;  // |v - v^|; of a coordinate of a sum of values
  // A value multiplied as integers: weights times steps are rounded, and what is rounded off
  // reaches the output times `codes`, a norm. 0: it is not.
  double step = 0.0, codes = 0.0;
  // It is rounded off by `share` of the largest among the tokens that may be rounded together:
  // neighbours here of the same `together` whose `place` is at most `reach` away.
  double share = 0.0;
  const void* together = nullptr;
  std::int32_t place = 0, reach = 0;
  double weight = 0.0;  // a^, e to log_weight, which is exact where a^ vanishes
  double log_weight = 0.0;
  double most = 0.0;  // >= a~, the weight that attention computes

  double error() const noexcept { return coding + drift; }
};

// The tokens of one KV head of a store.
class StoreFacts {
 public:
  virtual ~StoreFacts() = default;
  // Adds those that a query [key_dim] at a position sees, increasing.
  virtual void look(const LayerShape& layer, const float* q, std::int32_t position,
                    std::vector<Seen>& seen) const = 0;
};

namespace detail {

inline constexpr double kRound = 0x1p-24;  // unit roundoff of f32

inline double norm(const float* x, std::size_t n) {
  double sum = 0.0;
  for (std::size_t i = 0; i < n; ++i) sum += double{x[i]} * double{x[i]};
  return std::sqrt(sum);
}

}  // namespace detail
}  // namespace kvspan
