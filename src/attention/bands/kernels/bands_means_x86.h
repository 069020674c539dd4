// SPDX-License-Identifier: Apache-2.0
// What queries make of the mean of keys (BandsAttentionKernels::means), over the vector types of
// attention/kernels/x86.
#pragma once

#include <cstddef>

#include "base/unrolled.h"
#include "cache/bands/anchored_means.h"

namespace kvspan {
namespace {

// K vectors of positions after the middle from the k-th on, and as many before it, of R rows: 2 R K sums, and K
// numbers that rows share.
template <class V, int R, int K>
[[gnu::always_inline]] inline void mean_blocks(const AnchoredMeans& means, const float* sums, std::ptrdiff_t k,
                                               float* to, std::ptrdiff_t stride) noexcept {
  using F = typename V::F;
  const std::ptrdiff_t half = means.half(), pairs = means.pairs(), row = means.sums();
  F even[R][K], odd[R][K];
  unrolled<R * K>([&]<int i>() __attribute__((always_inline)) {
    even[i / K][i % K] = V::set(sums[i / K * row + 2 * pairs]);
    odd[i / K][i % K] = V::set(0.0f);
  });
  const auto add = [row](const float* turn, const float* by, F(&to_sums)[R][K]) __attribute__((always_inline)) {
    F x[K];
    unrolled<K>([&]<int i>() __attribute__((always_inline)) { x[i] = V::load(turn + V::kWidth * i); });
    unrolled<R>([&]<int r>() __attribute__((always_inline)) {
      const F a = V::set(by[r * row]);
      unrolled<K>([&]<int i>() __attribute__((always_inline)) { to_sums[r][i] = V::fma(x[i], a, to_sums[r][i]); });
    });
  };
  const float* turn = means.turns() + k;
  for (std::ptrdiff_t j = 0; j < means.used_terms(); ++j, turn += 2 * half) {
    add(turn, sums + j, even);
    add(turn + half, sums + pairs + j, odd);
  }
  unrolled<R * K>([&]<int i>() __attribute__((always_inline)) {
    const F e = even[i / K][i % K], o = odd[i / K][i % K];
    float* const middle = to + i / K * stride + half;
    const std::ptrdiff_t from = k + V::kWidth * (i % K);
    V::store(middle + from, V::add(e, o));
    V::store(middle - from - V::kWidth, V::reversed(V::sub(e, o)));
  });
}

// All positions from the k-th on of which whole blocks are left; k becomes the first of the others.
template <class V, int R, int K>
[[gnu::always_inline]] inline void mean_run(const AnchoredMeans& means, const float* sums, std::ptrdiff_t& k, float* to,
                                            std::ptrdiff_t stride) noexcept {
  for (; means.half() - k >= K * V::kWidth; k += K * V::kWidth) mean_blocks<V, R, K>(means, sums, k, to, stride);
}

}  // namespace
}  // namespace kvspan
