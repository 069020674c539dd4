// SPDX-License-Identifier: Apache-2.0
// The attention kernels in plain loops: defines what the others must compute.
#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/kernels/kernels.h"
#include "base/half.h"

namespace kvspan::detail {
namespace {

constexpr float kNegativeInfinity = -std::numeric_limits<float>::infinity();

float element(const RowsView& rows, std::int32_t token, std::int32_t i) {
  const auto at = static_cast<std::size_t>(token) * static_cast<std::size_t>(rows.stride) +
                  static_cast<std::size_t>(i);
  return rows.element == Element::kF16 ? to_float(reinterpret_cast<const Half*>(rows.data)[at])
                                       : reinterpret_cast<const float*>(rows.data)[at];
}

// Weights below 2^-126.5 are 0 at every level.
float weight(float score, float max) {
  const float x = score - max;
  return x < -126.5f ? 0.0f : std::exp2(x);
}

void score_rows(const float* queries, std::int32_t rows, std::int32_t dim, const RowsView& keys,
                std::int32_t tokens, const std::byte*, float* scores,
                std::int32_t score_stride) noexcept {
  for (std::int32_t r = 0; r < rows; ++r) {
    for (std::int32_t t = 0; t < tokens; ++t) {
      float sum = 0.0f;
      for (std::int32_t i = 0; i < dim; ++i) sum += queries[r * dim + i] * element(keys, t, i);
      scores[r * score_stride + t] = sum;
    }
  }
}

void weigh_rows(const float* weights, std::int32_t weight_stride, std::int32_t rows,
                const RowsView& values, std::int32_t dim, std::int32_t tokens, const std::byte*,
                float* out) noexcept {
  for (std::int32_t r = 0; r < rows; ++r) {
    for (std::int32_t t = 0; t < tokens; ++t) {
      for (std::int32_t i = 0; i < dim; ++i) {
        out[r * dim + i] += weights[r * weight_stride + t] * element(values, t, i);
      }
    }
  }
}

void score_codes(const IntegerQueries& queries, std::int32_t rows, std::int32_t dim,
                 const CodeRows& keys, std::int32_t tokens, bool add, float* scores,
                 std::int32_t score_stride) noexcept {
  for (std::int32_t r = 0; r < rows; ++r) {
    for (std::int32_t t = 0; t < tokens; ++t) {
      std::int32_t sum = 0;
      for (std::int32_t i = 0; i < dim; ++i) {
        sum += queries.numbers[r * queries.stride + i] * keys.codes[t * keys.stride + i];
      }
      const float score = static_cast<float>(sum) * (queries.scale[r] * keys.scale[t]);
      float& to = scores[r * score_stride + t];
      to = add ? to + score : score;
    }
  }
}

void weigh_codes(const float* weights, std::int32_t weight_stride, std::int32_t rows,
                 const CodeRows& values, std::int32_t dim, std::int32_t tokens, float* out,
                 std::int32_t out_stride) noexcept {
  for (std::int32_t r = 0; r < rows; ++r) {
    for (std::int32_t t = 0; t < tokens; ++t) {
      const float weight = weights[r * weight_stride + t] * values.scale[t];
      for (std::int32_t i = 0; i < dim; ++i) {
        out[r * out_stride + i] += weight * static_cast<float>(values.codes[t * values.stride + i]);
      }
    }
  }
}

float soften_row(float* scores, std::int32_t tokens, float* max) noexcept {
  float m = *max;
  for (std::int32_t t = 0; t < tokens; ++t) m = std::max(m, scores[t]);
  *max = m;
  const float base = m == kNegativeInfinity ? 0.0f : m;
  float sum = 0.0f;
  for (std::int32_t t = 0; t < tokens; ++t) {
    scores[t] = weight(scores[t], base);
    sum += scores[t];
  }
  for (std::int32_t t = tokens; t % kScoreMultiple != 0; ++t) scores[t] = 0.0f;
  return sum;
}

void widen(const RowsView& rows, std::int32_t dim, std::int32_t tokens, float* to) noexcept {
  for (std::int32_t t = 0; t < tokens; ++t) {
    for (std::int32_t i = 0; i < dim; ++i) to[t * dim + i] = element(rows, t, i);
  }
}

void score_panels(const float* panels, std::int32_t rows, std::int32_t dim, const float* keys,
                std::int32_t tokens, float* scores) noexcept {
  for (std::int32_t t = 0; t < tokens; ++t) {
    for (std::int32_t r = 0; r < rows; ++r) {
      const float* panel = panels + r / kPanelRows * kPanelRows * dim + r % kPanelRows;
      float sum = 0.0f;
      for (std::int32_t i = 0; i < dim; ++i) sum += panel[i * kPanelRows] * keys[t * dim + i];
      scores[t * rows + r] = sum;
    }
  }
}

void soften_panels(float* scores, std::int32_t rows, std::int32_t tokens, const std::int32_t* begin,
                 const std::int32_t* end, float* max, float* sum, float* decay) noexcept {
  for (std::int32_t r = 0; r < rows; ++r) {
    float m = max[r];
    for (std::int32_t t = 0; t < tokens; ++t) {
      float& score = scores[t * rows + r];
      if (begin != nullptr && (t < begin[r] || t >= end[r])) score = kNegativeInfinity;
      m = std::max(m, score);
    }
    const float base = m == kNegativeInfinity ? 0.0f : m;
    decay[r] = weight(max[r], base);
    float added = 0.0f;
    for (std::int32_t t = 0; t < tokens; ++t) {
      scores[t * rows + r] = weight(scores[t * rows + r], base);
      added += scores[t * rows + r];
    }
    max[r] = m;
    sum[r] = sum[r] * decay[r] + added;
  }
}

void weigh_panels(const float* weights, std::int32_t rows, const float* values, std::int32_t dim,
                std::int32_t tokens, const float* decay, float* out) noexcept {
  for (std::int32_t r = 0; r < rows; ++r) {
    for (std::int32_t i = 0; i < dim; ++i) {
      float sum = decay[r] * out[r * dim + i];
      for (std::int32_t t = 0; t < tokens; ++t) {
        sum += weights[t * rows + r] * values[t * dim + i];
      }
      out[r * dim + i] = sum;
    }
  }
}

void cap(float* scores, std::int32_t count, float c) noexcept {
  constexpr float kHalfLn2 = 0.34657359027997264f;
  constexpr float kLog2e = 1.4426950408889634f;
  for (std::int32_t i = 0; i < count; ++i) scores[i] = kLog2e * c * std::tanh(kHalfLn2 * scores[i]);
}

void exp2(const float* from, std::int32_t count, float* to) noexcept {
  for (std::int32_t i = 0; i < count; ++i) to[i] = weight(from[i], 0.0f);
}

}  // namespace

const AttentionKernels kAttentionKernelsRef{score_rows, weigh_rows, score_codes, weigh_codes,
                                            soften_row, widen,      score_panels,  soften_panels,
                                            weigh_panels, cap,        exp2};

}  // namespace kvspan::detail
