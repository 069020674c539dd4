// SPDX-License-Identifier: Apache-2.0
// The softmax of query rows that meet tokens stretch by stretch: scores become weights, times a gain of each token and
// rounded to 8 bits for BandsAttentionKernels::weigh, while the largest score and the sum of weights of each row run on.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "attention/bands/kernels/bands_kernels.h"
#include "attention/bands/work_places.h"
#include "attention/kernels/kernels.h"

namespace kvspan {

class StretchSoftmax {
 public:
  static constexpr std::int32_t kTokens = kBandsStretchTokens;       // of a stretch, at most
  static constexpr std::int32_t kStride = kTokens + kScoreMultiple;  // of rows of scores
  // Tokens that hardly count beside others count as the mean of values instead of being summed:
  // stretches of tokens whose weights are less than 2^-12 of all that the row has met. That moves an
  // output by no more than this share, for each stretch, of how far a value is from the mean.
  static constexpr float kLightShare = 0x1p-12f;
  // Tiles of a stretch: over fine codes few, since the fewer tokens share a scale of weights, the less is rounded off.
  static std::int32_t tiles(const BandsAttentionKernels& kernels, bool fine) noexcept {
    return fine ? std::min(kernels.run_tiles, 4) : kernels.run_tiles;
  }

  // Running, [rows]: the largest score, and in its unit sums of weights and of weights times gains.
  float *max = nullptr, *sum = nullptr, *weighed = nullptr;
  float* scores = nullptr;  // [rows][kStride], of the stretch at hand

  // With room for `rows`; max, sum and weighed are the caller's.
  void place(WorkPlaces& places, std::int32_t rows) {
    const auto n = static_cast<std::size_t>(rows);
    scores = places.floats(n * kStride);
    elsewhere_ = places.floats(n);
    kept_ = places.floats(n);
    scales_ = places.floats(n);
    summed_ = reinterpret_cast<float**>(places.floats(n * sizeof(float*) / sizeof(float)));
    weights_ = places.codes((n + kBandsRowsAfter) * kTokens);
  }

  // Row r begins beside tokens of which it knows the natural log-sum-exp; -inf where there are none. That is
  // its first maximum: their weights then sum to 1.
  void start(std::int32_t r, float lse_elsewhere) {
    max[r] = lse_elsewhere * 1.4426950408889634f;
    elsewhere_[r] = std::isinf(max[r]) ? 0.0f : 1.0f;
  }

  // Of `rows` rows and `tokens` tokens, a multiple of 16. begin(r, scores) finishes the scores of a row and tells the
  // first token that it sees, or `tokens`; out(r) is where its sums are. Weights below `light` of all so far, in sum, are
  // not to be summed over.
  template <class Begin, class Out>
  BandsWeights soften(std::int32_t rows, std::int32_t tokens, const float* gains, float light, const Begin& begin,
                      const Out& out) {
    bool all_kept = true;
    std::int32_t used = 0;
    for (std::int32_t r = 0; r < rows; ++r) {
      float* const s = scores + static_cast<std::ptrdiff_t>(r) * kStride;
      const std::int32_t from = begin(r, s);
      if (from == tokens) continue;
      const float old = max[r];
      const BandsRow row = soften_row(s, from, tokens, gains, light * (elsewhere_[r] + sum[r]), &max[r],
                                      weights_ + static_cast<std::ptrdiff_t>(used) * kTokens);
      float kept = 1.0f;
      if (old != max[r]) {
        kept = std::exp2(old - max[r]);
        for (float* const running : {sum, weighed, elsewhere_}) running[r] *= kept;
        all_kept = false;
      }
      sum[r] += row.sum;
      if (row.light) continue;
      weighed[r] += row.weighed;
      scales_[used] = row.largest / 127.0f;
      kept_[used] = kept;
      summed_[used++] = out(r);
    }
    return {weights_, all_kept ? nullptr : kept_, scales_, summed_, used};
  }

 private:
  // Those before `from` weigh nothing.
  BandsRow soften_row(float* s, std::int32_t from, std::int32_t tokens, const float* gains, float light, float* most,
                      std::int8_t* to) const {
    if (bands_.soften != nullptr) {
      std::fill_n(s, from, -std::numeric_limits<float>::infinity());
      return bands_.soften(s, gains, tokens, light, most, to);
    }
    const float before = *most;
    BandsRow row;
    row.sum = kernels_.soften_row(s + from, tokens - from, most);
    row.light = *most == before && row.sum < light;
    if (row.light) return row;
    std::fill_n(s, from, 0.0f);
    row.largest = bands_.round_weights(s, gains, tokens, to, &row.weighed);
    std::fill(to + tokens, to + kTokens, std::int8_t{0});
    return row;
  }

  const AttentionKernels& kernels_ = attention_kernels(cpu_level());
  const BandsAttentionKernels& bands_ = bands_attention_kernels(cpu_level());
  float* elsewhere_ = nullptr;                 // running sums of the weights of tokens elsewhere
  float *kept_ = nullptr, *scales_ = nullptr;  // of the rows that are summed over a stretch
  float** summed_ = nullptr;                   // where their sums are
  std::int8_t* weights_ = nullptr;
};

}  // namespace kvspan
