// SPDX-License-Identifier: Apache-2.0
// The arithmetic of blockwise softmax, one table of functions per CPU level.
//
// Scores are in base 2: queries arrive multiplied by logit_scale * log2(e), so a weight is
// 2^(score - max), and a log-sum-exp is ln 2 * (max + log2(sum)). Everything accumulates in f32.
//
// Two forms of the same work:
//   rows   few query rows (decode: the query heads that share a KV head). Scores are [row][token];
//          each key and value is read and converted once for up to four rows.
//   panels many query rows (prefill), in panels of 16. Keys and values of some tokens are widened
//          to f32 once; scores are [token][row], so softmax goes across rows without horizontal
//          steps, and both products are register-blocked outer products.
//
// Dimensions are multiples of 8 (cache/segments/segment.h pads rows with zeros). Pointers need no alignment
// beyond their element's. No function allocates or fails.
#pragma once

#include <cstdint>

#include "base/cpu_level.h"
#include "cache/segments/segment.h"

namespace kvspan {

// Query rows of a panel; their number is padded to a multiple of it.
inline constexpr std::int32_t kPanelRows = 16;
// Functions of panels may touch tokens up to the next multiple of this; their buffers have room for it.
inline constexpr std::int32_t kTokenMultiple = 8;
// Coordinates of one product of integers: 2^31 / (kQueryLimit * 128) and more do not fit an int32.
inline constexpr std::int32_t kMaxCodeDim = 512;
// A row of scores has room up to the next multiple of this.
inline constexpr std::int32_t kScoreMultiple = 16;

// Integer coefficients: number i of row t is scale[t] * codes[t * stride + i].
struct CodeRows {
  const std::int8_t* codes = nullptr;
  std::int32_t stride = 0;  // bytes
  const float* scale = nullptr;
  // Where rows of the same number and size lie that will be read after these; null if none. Levels
  // may ask memory for them on the way.
  const std::byte* next = nullptr;
};

// Query rows rounded to integers of up to kQueryLimit in magnitude: number i of row r is
// scale[r] * numbers[r * stride + i].
inline constexpr std::int32_t kQueryLimit = 127 * 256;
struct IntegerQueries {
  const std::int16_t* numbers = nullptr;
  std::int32_t stride = 0;
  const float* scale = nullptr;
};

inline constexpr double kWeightRounding = 0.5001 / kQueryLimit;
inline constexpr std::int32_t kWeightBlock = 64;

struct AttentionKernels {
  // In rows form, `next` is where rows of the same number and size lie that will be read after
  // these (null if none): memory is asked for them on the way.

  // scores[r * score_stride + t] = dot(queries[r * dim ...], keys row t), r < rows, t < tokens;
  // numbers of the queries are below 2^31.
  void (*score_rows)(const float* queries, std::int32_t rows, std::int32_t dim,
                     const RowsView& keys, std::int32_t tokens, const std::byte* next,
                     float* scores, std::int32_t score_stride) noexcept;
  // out[r * dim + i] += sum over t < tokens of weights[r * weight_stride + t] * values[t][i];
  // weights of f16 values are at most 1.
  void (*weigh_rows)(const float* weights, std::int32_t weight_stride, std::int32_t rows,
                     const RowsView& values, std::int32_t dim, std::int32_t tokens,
                     const std::byte* next, float* out) noexcept;
  // The same products with integer coefficients, which are never widened in memory. Sums of one
  // call are exact integers: dim is a multiple of 8 and at most kMaxCodeDim. With `add` the scores
  // are added to.
  void (*score_codes)(const IntegerQueries& queries, std::int32_t rows, std::int32_t dim,
                      const CodeRows& keys, std::int32_t tokens, bool add, float* scores,
                      std::int32_t score_stride) noexcept;
  // out[r * out_stride + i] += sum over t of weights[r * weight_stride + t] * values[t][i]. A level
  // may round weights times scales by at most kWeightRounding of the largest among kWeightBlock
  // tokens, counted from the first.
  void (*weigh_codes)(const float* weights, std::int32_t weight_stride, std::int32_t rows,
                      const CodeRows& values, std::int32_t dim, std::int32_t tokens, float* out,
                      std::int32_t out_stride) noexcept;
  // Turns scores[0 .. tokens) into weights 2^(score - m), m = max(max, every score), and writes
  // zeros up to the next multiple of kScoreMultiple. Returns their sum and sets *max = m. If m is
  // -inf all weights are 0.
  float (*soften_row)(float* scores, std::int32_t tokens, float* max) noexcept;

  // to[t * dim + i] = rows[t][i], t < tokens, i < dim.
  void (*widen)(const RowsView& rows, std::int32_t dim, std::int32_t tokens, float* to) noexcept;
  // scores[t * rows + r] = dot of query row r and keys[t * dim ...], for r < rows (a multiple of
  // kPanelRows) and t < tokens rounded up to kTokenMultiple. `panels` holds the queries as
  // [rows / kPanelRows][dim][kPanelRows].
  void (*score_panels)(const float* panels, std::int32_t rows, std::int32_t dim, const float* keys,
                     std::int32_t tokens, float* scores) noexcept;
  // The softmax step of panels: row r sees the tokens in [begin[r], end[r]), or all if `begin` is
  // null. Turns scores into weights (0 where unseen), updates max[r] and sum[r], and sets
  // decay[r] = 2^(old max - new max), the factor for what was summed before (0 if nothing was).
  void (*soften_panels)(float* scores, std::int32_t rows, std::int32_t tokens,
                      const std::int32_t* begin, const std::int32_t* end, float* max, float* sum,
                      float* decay) noexcept;
  // out[r * dim + i] = decay[r] * out[r * dim + i] + sum over t of weights[t * rows + r] *
  // values[t * dim + i].
  void (*weigh_panels)(const float* weights, std::int32_t rows, const float* values, std::int32_t dim,
                     std::int32_t tokens, const float* decay, float* out) noexcept;

  // Soft cap in place: scores hold 2 log2(e) s / c and become log2(e) c tanh(s / c). Absolute error
  // below 4 c eps log2(e): near 0 the cap's relative error is not small, its effect on a weight is.
  void (*cap)(float* scores, std::int32_t count, float c) noexcept;
  // to[i] = 2^from[i] for from[i] <= 0; below -126.5 exactly 0, -inf included. Relative error below
  // 2^-22. Exposed for tests.
  void (*exp2)(const float* from, std::int32_t count, float* to) noexcept;
};

// The table of a level this processor has.
const AttentionKernels& attention_kernels(CpuLevel level) noexcept;

namespace detail {
extern const AttentionKernels kAttentionKernelsRef;
extern const AttentionKernels kAttentionKernelsNeon;
extern const AttentionKernels kAttentionKernelsAvx2;
extern const AttentionKernels kAttentionKernelsAvx512;
extern const decltype(AttentionKernels::score_codes) kScoreCodesVnni;
}  // namespace detail

}  // namespace kvspan
