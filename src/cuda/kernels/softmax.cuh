// SPDX-License-Identifier: Apache-2.0
// What all kernels of attention agree on about softmax. Scores are in units of log 2.
#pragma once

#include "cuda/kernels/mma.cuh"

namespace kvspan::cuda {

// Scores of tokens that a query does not see, and the largest score before any was seen: far above
// the former, so that the weight of an unseen token is 0 even then.
inline constexpr float kUnseen = -1e30f, kNothing = -1e29f;

// c tanh(x / c), c > 0: off by some 2^-22 of c.
__device__ __forceinline__ float capped(float x, float cap) {
  const float e = exp2_approx(x * __fdividef(2.0f * 1.44269504f, cap));
  return cap - __fdividef(2.0f * cap, e + 1.0f);
}

}  // namespace kvspan::cuda
