// SPDX-License-Identifier: Apache-2.0
// Integer products of bands: codes of tiles as codec/bands/bands_pack.h unpacks them, [quads][16
// tokens][4 components], with queries and weights rounded to 8 bits. Sums are exact: of at most
// 4096 products below 2^14.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/cpu_level.h"
#include "cache/bands/bands_code.h"

namespace kvspan {

// Tiles that one softmax step covers at most, and whose weights are rounded with one scale.
inline constexpr std::int32_t kBandsStretchTiles = 16;
inline constexpr std::int32_t kBandsStretchTokens = 16 * kBandsStretchTiles;

// What kernels may read after the last of what they are given, whatever it is: bytes of codes, and rows of queries or weights.
inline constexpr std::size_t kBandsBytesAfter = 960, kBandsRowsAfter = 15;

// Scales of one query at most: one for each range of components, and each rest.
inline constexpr auto kBandScales = static_cast<std::int32_t>(2 * BandsCode::kMostRanges);

// Bytes of a rounded query for a range: its places, then zeros up to whole 64.
constexpr std::int32_t query_bytes(const BandsCode::ScaleRange& range) noexcept {
  return (range.quads + 15) / 16 * 64;
}

// Queries in coefficient space times the steps, rounded to 8 bits.
struct BandsQueries {
  const std::int8_t* rounded = nullptr;  // [rows][stride], query_bytes() of each range in turn
  std::int32_t stride = 0;
  const float* scales = nullptr;  // [rows][kBandScales]
  const float* offsets =
      nullptr;  // [rows], half the sum of the components: codes stand for c + 1/2
  std::int32_t rows = 0;
};

// Rows that score_part takes at most.
inline constexpr std::int32_t kBandsPartRows = 16;

// Where scores go, and what is known of their tokens.
struct BandsScores {
  const float* gains = nullptr;
  const float* means = nullptr;  // [rows][mean_stride]
  std::int32_t mean_stride = 0;
  float* scores = nullptr;  // [rows][score_stride]
  std::int32_t score_stride = 0;

  BandsScores from(std::int32_t token) const noexcept {
    return {gains + token, means + token, mean_stride, scores + token, score_stride};
  }
};

// Rows of weights, 0 .. 127, and where their sums go.
struct BandsWeights {
  // [rows][kBandsStretchTokens], zeros where there are no tokens up to whole 64.
  const std::int8_t* rounded = nullptr;
  const float* kept = nullptr;    // [rows], what counts of each sum so far; null where all of it
  const float* scales = nullptr;  // [rows]
  float* const* out = nullptr;    // [rows], of 4 quads numbers each
  std::int32_t rows = 0;

  BandsWeights from(std::int32_t r) const noexcept {
    return {rounded + static_cast<std::ptrdiff_t>(r) * kBandsStretchTokens,
            kept != nullptr ? kept + r : nullptr, scales + r, out + r, rows - r};
  }
};

// What a row of scores becomes.
struct BandsRow {
  float sum = 0.0f;      // of weights
  float largest = 0.0f;  // of weights times gains; 0 where the row is light, which is not rounded
  float weighed = 0.0f;  // sum of weights times gains
  bool light = false;
};

struct BandsAttentionKernels {
  // Whether an instruction adds products of bytes to their sum: several times as many as of floats at once.
  bool adds_bytes = false;
  // Tiles that a softmax step should cover, at most kBandsStretchTiles: the more, the fewer sums to
  // add, and the less of the codes stays in the first-level cache.
  std::int32_t run_tiles = 8;
  // Tokens t of tiles that follow each other: scores[r * score_stride + t] = gains[t] * (offset[r]
  // + sum over ranges of scale * (codes of the range . query)) + means[r * mean_stride + t]. `codes`
  // starts at the first range's; ranges are all that a tile has. kBandsBytesAfter.
  void (*score)(const std::int8_t* codes, std::int32_t tiles,
                std::span<const BandsCode::ScaleRange> ranges, const NarrowQuads& narrow,
                const BandsQueries& queries, const BandsScores& to) noexcept = nullptr;
  // AnchoredMeans::fold; `to` may be written up to the sums() that there are.
  void (*fold)(const AnchoredMeans& means, std::int32_t head, const float* u,
               float* to) noexcept = nullptr;
  // cache/bands/anchored_means.h: to[r * stride ..] becomes what row r makes of the mean at the 2
  // half() positions of a block; rows of sums lie sums() apart.
  void (*means)(const AnchoredMeans& means, const float* sums, std::int32_t rows, float* to,
                std::int32_t stride) noexcept = nullptr;
  // out[r][4 q + k] becomes kept[r] times what it was + scales[r] * sum over tiles i and t < 16 of
  // codes[i][q][t][k] * rounded[r][16 i + t]; tiles, at most kBandsStretchTiles, lie quads * 64 apart,
  // so that sums stay below 2^22. kBandsRowsAfter, of `rounded`.
  void (*weigh)(const std::int8_t* codes, std::int32_t tiles, std::int32_t quads,
                const NarrowQuads& narrow, const BandsWeights& weights) noexcept = nullptr;
  // to[r * to_stride + 16 i + p] = factors[16 i + p] * sum over q, k of matrix[i][q][p][k] *
  // vectors[r * stride + 4 q + k], i < tiles. kBandsRowsAfter, of vectors.
  void (*project)(const std::int8_t* matrix, std::int32_t tiles, std::int32_t quads,
                  const float* factors, const std::int8_t* vectors, std::int32_t stride,
                  std::int32_t rows, float* to, std::int32_t to_stride) noexcept = nullptr;
  // x[i] *= factors[i], neither below 0, then rounded as below. Adds the sum of x to *sum; returns
  // the largest. count is a multiple of 16.
  float (*round_weights)(float* x, const float* factors, std::int32_t count, std::int8_t* to,
                         float* sum) noexcept = nullptr;
  // to[i] = 127 x[i] / m to the nearest whole number, m the largest |x[i]|, which it returns; 0
  // where m is. Adds the sum of x to *sum. count is a multiple of 4.
  float (*round)(const float* x, std::int32_t count, std::int8_t* to,
                 float* sum) noexcept = nullptr;
  // AttentionKernels::soften_row and then round_weights at once, of kBandsStretchTokens scores at most,
  // zeros after the last; a row whose *max stays and whose weights sum to less than `light` is not
  // rounded. Scores stay. Null where the two are as fast.
  BandsRow (*soften)(const float* scores, const float* gains, std::int32_t count, float light,
                     float* max, std::int8_t* to) noexcept = nullptr;
  // `score` in parts, between which other work goes on; null where there are none. 64 places of one
  // tile meet as many of the queries, at most kBandsPartRows rows, `stride` apart. What they give
  // is added to the parts before, but for the first; with the last, sums [kBandsPartRows][16] get
  // it, else null. Between first and last no other products are made.
  void (*score_part)(const std::int8_t* codes, const std::int8_t* queries, std::int32_t stride,
                     bool first, std::int32_t* sums) noexcept = nullptr;
  // Sums of all ranges, one after the other, to scores of a tile.
  void (*score_end)(const std::int32_t* sums, std::size_t ranges, const BandsQueries& queries,
                    const BandsScores& to) noexcept = nullptr;
  // See BandsProducts; null where there is nothing to do.
  void (*begin)(std::int32_t rows) noexcept = nullptr;
  void (*end)() noexcept = nullptr;
};

// While it lives, its thread makes products of `rows` queries at most: some processors have
// registers to be shaped for that, which are as they were afterwards. Products are the same without
// it, but slower. Not one within another.
class BandsProducts {
 public:
  BandsProducts(const BandsAttentionKernels& kernels, std::int32_t rows) noexcept
      : kernels_(kernels) {
    if (kernels_.begin != nullptr) kernels_.begin(rows);
  }
  ~BandsProducts() {
    if (kernels_.end != nullptr) kernels_.end();
  }
  BandsProducts(const BandsProducts&) = delete;
  BandsProducts& operator=(const BandsProducts&) = delete;

 private:
  const BandsAttentionKernels& kernels_;
};

// Bytes of a rounded query for all ranges.
inline std::int32_t query_stride(std::span<const BandsCode::ScaleRange> ranges) noexcept {
  std::int32_t bytes = 0;
  for (const BandsCode::ScaleRange& range : ranges) bytes += query_bytes(range);
  return bytes;
}
// The digit after that of BandsAttentionKernels::round, which returned `largest` and gave `rounded`: what it left of x,
// kDigitBase times as fine. At most half of that.
inline void round_rest(const float* x, std::int32_t count, float largest, const std::int8_t* rounded,
                       std::int8_t* to) noexcept {
  constexpr float kWhole = 0x1.8p23f;  // added to a number, leaves it whole in the lowest bits
  const float inverse = largest > 0.0f ? 127.0f / largest : 0.0f;
  for (std::int32_t i = 0; i < count; ++i) {
    const float left = kDigitBase * (x[i] * inverse - static_cast<float>(rounded[i]));
    to[i] = static_cast<std::int8_t>(std::bit_cast<std::int32_t>(left + kWhole));
  }
}
// Rounds a row of places as BandsQueries has them, each range with a scale, times `unit`; returns the sum of the row.
inline float round_by_ranges(const BandsAttentionKernels& kernels, std::span<const BandsCode::ScaleRange> ranges,
                           const float* row, float unit, std::int8_t* to, float* scales) noexcept {
  float sum = 0.0f;
  const BandsCode::ScaleRange* rest = nullptr;  // of the next range
  for (const BandsCode::ScaleRange& range : ranges) {
    if (range.rest) {
      rest = &range;
      to += query_bytes(range);
      ++scales;
      continue;
    }
    const float* const from = row + 4 * range.first_quad;
    const float largest = kernels.round(from, 4 * range.quads, to, &sum);
    *scales = largest * unit / 127.0f;
    if (rest != nullptr) {
      std::int8_t* const fine = to - query_bytes(*rest);
      round_rest(from, 4 * rest->quads, largest, to, fine);
      std::fill(fine + 4 * rest->quads, to, std::int8_t{0});
      scales[-1] = *scales / kDigitBase;
      rest = nullptr;
    }
    ++scales;
    std::fill(to + 4 * range.quads, to + query_bytes(range), std::int8_t{0});
    to += query_bytes(range);
  }
  return sum;
}

// The table of a level this processor has.
const BandsAttentionKernels& bands_attention_kernels(CpuLevel level) noexcept;

namespace detail {
extern const BandsAttentionKernels kBandsAttentionRef;
extern const BandsAttentionKernels kBandsAttentionNeon;
extern const BandsAttentionKernels kBandsAttentionI8mm;  // null where they are Neon's
extern const BandsAttentionKernels kBandsAttentionAvx2;
extern const BandsAttentionKernels kBandsAttentionAvx512;
extern const BandsAttentionKernels kBandsAttentionVnni;  // null where they are AVX-512's
extern const BandsAttentionKernels kBandsAttentionAmx;   // the same
}  // namespace detail

}  // namespace kvspan
