// SPDX-License-Identifier: Apache-2.0
#include "codec/llama_blocks.h"

#include <algorithm>
#include <cmath>

namespace kvspan {
namespace {

// 0 where there is no finite inverse: all codes become 0.
float inverse_of(float d) {
  const float inverse = d == 0.0f ? 0.0f : 1.0f / d;
  return std::isfinite(inverse) ? inverse : 0.0f;
}

}  // namespace

Half quantize_q8_0(const float* x, std::size_t n, std::int8_t* codes) noexcept {
  float most = 0.0f;
  for (std::size_t i = 0; i < n; ++i) most = std::max(most, std::fabs(x[i]));
  const float d = most / 127.0f;
  const float inverse = inverse_of(d);
  for (std::size_t i = 0; i < n; ++i) {
    codes[i] = static_cast<std::int8_t>(std::round(x[i] * inverse));
  }
  return to_half(d);
}

Half quantize_q4_0(const float* x, std::size_t n, std::int8_t* codes) noexcept {
  float most = 0.0f;  // with its sign
  for (std::size_t i = 0; i < n; ++i) {
    if (std::fabs(x[i]) > std::fabs(most)) most = x[i];
  }
  const float d = most / -8.0f;
  const float inverse = inverse_of(d);
  for (std::size_t i = 0; i < n; ++i) {
    const float shifted = x[i] * inverse + 8.5f;
    codes[i] = static_cast<std::int8_t>(std::min(15, static_cast<int>(shifted)) - 8);
  }
  return to_half(d);
}

}  // namespace kvspan
