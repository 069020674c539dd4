// SPDX-License-Identifier: Apache-2.0
#include "codec/token_gain.h"

#include <algorithm>
#include <cmath>

namespace kvspan {
namespace {

// Four running sums, so that additions need not wait for each other.
struct Sums {
  float four[4] = {};
  float all() const noexcept { return (four[0] + four[1]) + (four[2] + four[3]); }
};

}  // namespace

float GainRule::gain_of(const float* c) const noexcept {
  Sums squares;
  for (std::int32_t i = 0; i < places; i += 4) {
    for (std::int32_t k = 0; k < 4; ++k) {
      const float x = c[i + k] * inverse_sigma[i + k];
      squares.four[k] += x * x;
    }
  }
  const float rms = std::sqrt(squares.all() / stored);
  float gain = rms;
  for (int round = 0; round < kRounds; ++round) {
    Sums met, reached;
    for (std::int32_t i = 0; i < places; i += 4) {
      for (std::int32_t k = 0; k < 4; ++k) {
        const float size = std::abs(c[i + k]);
        const float r = size > gain * reach[i + k] ? reach[i + k] : 0.0f;
        met.four[k] += r * size;
        reached.four[k] += r * r;
      }
    }
    if (!(met.all() > 0.0f)) break;
    gain = std::max(rms, met.all() / (fine + reached.all()));
  }
  return gain;
}

}  // namespace kvspan
