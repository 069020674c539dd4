// SPDX-License-Identifier: Apache-2.0
// The plain loops of bands_kernels.h, for every instruction set that a compiler vectorises well.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <utility>

#include "attention/bands/kernels/bands_kernels.h"

namespace kvspan::detail {
namespace {

// use.template operator()<R>(first) for blocks of R of the rows, as many of the first size as fit,
// then of the next; the last is 1.
template <int... kSizes, class Use>
[[gnu::always_inline]] inline void in_blocks(std::int32_t rows, const Use& use) {
  std::int32_t r = 0;
  const auto some = [&]<int R>() {
    for (; r + R <= rows; r += R) use.template operator()<R>(r);
  };
  (some.template operator()<kSizes>(), ...);
}

// use.template operator()<R>(first) for blocks of at most kMost of the rows, of nearly equal sizes.
template <int kMost, class Use>
[[gnu::always_inline]] inline void in_even_blocks(std::int32_t rows, const Use& use) noexcept {
  for (std::int32_t r = 0, blocks = (rows + kMost - 1) / kMost; blocks > 0; --blocks) {
    const std::int32_t size = (rows - r + blocks - 1) / blocks;
    [&]<int... k>(std::integer_sequence<int, k...>) {
      (void)((size == k + 1 && (use.template operator()<k + 1>(r), true)) || ...);
    }
    (std::make_integer_sequence<int, kMost>{});
    r += size;
  }
}

// sums[t] = codes [quads][16][4] . query
[[maybe_unused]] void dots_plain(const std::int8_t* codes, std::int32_t quads,
                                 const std::int8_t* query, std::int32_t* sums) noexcept {
  std::fill_n(sums, 16, 0);
  for (std::int32_t q = 0; q < quads; ++q, codes += 64, query += 4) {
    for (std::int32_t t = 0; t < 16; ++t) {
      sums[t] += codes[4 * t] * query[0] + codes[4 * t + 1] * query[1] +
                 codes[4 * t + 2] * query[2] + codes[4 * t + 3] * query[3];
    }
  }
}

[[maybe_unused]] void score_plain(const std::int8_t* codes,
                                  std::span<const BandsCode::ScaleRange> ranges,
                                  const BandsQueries& queries, const BandsScores& to) noexcept {
  for (std::int32_t r = 0; r < queries.rows; ++r) {
    const std::int8_t* query = queries.rounded + static_cast<std::ptrdiff_t>(r) * queries.stride;
    float total[16];
    std::fill_n(total, 16, queries.offsets[r]);
    for (std::size_t w = 0; w < ranges.size(); ++w) {
      std::int32_t sums[16];
      dots_plain(codes + static_cast<std::ptrdiff_t>(ranges[w].first_quad) * 64, ranges[w].quads, query,
                 sums);
      query += query_bytes(ranges[w]);
      const float scale = queries.scales[static_cast<std::ptrdiff_t>(r) * kBandScales +
                                         static_cast<std::ptrdiff_t>(w)];
      for (int t = 0; t < 16; ++t) total[t] += scale * static_cast<float>(sums[t]);
    }
    float* scores = to.scores + static_cast<std::ptrdiff_t>(r) * to.score_stride;
    const float* mean = to.means + static_cast<std::ptrdiff_t>(r) * to.mean_stride;
    for (int t = 0; t < 16; ++t) scores[t] = mean[t] + to.gains[t] * total[t];
  }
}

// All tiles by a function of one.
template <auto kScoreTile>
void score_tiles(const std::int8_t* codes, std::int32_t tiles,
                 std::span<const BandsCode::ScaleRange> ranges, const NarrowQuads& /*narrow*/,
                 const BandsQueries& queries, const BandsScores& to) noexcept {
  const std::ptrdiff_t tile_bytes = 64 * (ranges.back().first_quad + ranges.back().quads);
  for (std::int32_t i = 0; i < tiles; ++i) {
    kScoreTile(codes + i * tile_bytes, ranges, queries, to.from(16 * i));
  }
}

[[maybe_unused]] void fold_plain(const AnchoredMeans& means, std::int32_t head, const float* u,
                                 float* to) noexcept {
  means.fold(head, u, to);
}

[[maybe_unused]] void means_plain(const AnchoredMeans& means, const float* sums, std::int32_t rows,
                                  float* to, std::int32_t stride) noexcept {
  const std::int32_t half = means.half(), pairs = means.pairs();
  for (std::int32_t r = 0; r < rows; ++r, sums += means.sums(), to += stride) {
    for (std::int32_t first = 0; first < half; first += 8) {
      float even[8], odd[8] = {};
      std::fill_n(even, 8, sums[2 * pairs]);
      const float* turn = means.turns() + first;
      for (std::int32_t j = 0; j < means.terms(); ++j, turn += 2 * half) {
        for (int k = 0; k < 8; ++k) even[k] += sums[j] * turn[k];
        for (int k = 0; k < 8; ++k) odd[k] += sums[pairs + j] * turn[half + k];
      }
      for (int k = 0; k < 8; ++k) {
        to[half + first + k] = even[k] + odd[k];
        to[half - 1 - first - k] = even[k] - odd[k];
      }
    }
  }
}

[[maybe_unused]] void weigh_plain(const std::int8_t* codes, std::int32_t tiles, std::int32_t quads,
                                  const NarrowQuads& /*narrow*/,
                                  const BandsWeights& weights) noexcept {
  for (std::int32_t r = 0; r < weights.rows; ++r) {
    float* out = weights.out[r];
    for (std::int32_t q = 0; q < quads; ++q, out += 4) {
      std::int32_t total[4] = {};
      for (std::int32_t i = 0; i < tiles; ++i) {
        const std::int8_t* from = codes + (static_cast<std::ptrdiff_t>(i) * quads + q) * 64;
        const std::int8_t* row = weights.rounded + r * kBandsStretchTokens + 16 * i;
        for (std::int32_t t = 0; t < 16; ++t) {
          for (std::int32_t k = 0; k < 4; ++k) total[k] += from[4 * t + k] * row[t];
        }
      }
      for (std::int32_t k = 0; k < 4; ++k) {
        const float before = weights.kept != nullptr ? out[k] * weights.kept[r] : out[k];
        out[k] = before + weights.scales[r] * static_cast<float>(total[k]);
      }
    }
  }
}

[[maybe_unused]] void project_plain(const std::int8_t* matrix, std::int32_t tiles,
                                    std::int32_t quads, const float* factors,
                                    const std::int8_t* vectors, std::int32_t stride,
                                    std::int32_t rows, float* to, std::int32_t to_stride) noexcept {
  for (std::int32_t i = 0; i < tiles; ++i, matrix += static_cast<std::ptrdiff_t>(quads) * 64) {
    for (std::int32_t r = 0; r < rows; ++r) {
      std::int32_t sums[16];
      dots_plain(matrix, quads, vectors + static_cast<std::ptrdiff_t>(r) * stride, sums);
      float* row = to + static_cast<std::ptrdiff_t>(r) * to_stride + 16 * i;
      for (int p = 0; p < 16; ++p) {
        row[p] = factors[16 * i + p] * static_cast<float>(sums[p]);
      }
    }
  }
}

// The factor that makes whole numbers up to 127 of numbers up to `largest`.
[[gnu::always_inline]] inline float to_bytes(float largest) noexcept {
  return largest > 0.0f ? 127.0f / largest : 0.0f;
}

// Added to a number below 2^22, leaves the nearest whole one in the low bits.
constexpr float kNearest = 12582912.0f;

[[gnu::always_inline]] inline std::int8_t nearest_byte(float x) noexcept {
  return static_cast<std::int8_t>(std::bit_cast<std::uint32_t>(x + kNearest) & 255u);
}

[[maybe_unused]] float round_weights_plain(float* x, const float* factors, std::int32_t count,
                                           std::int8_t* to, float* sum) noexcept {
  float sums[16] = {}, most[16] = {};
  for (std::int32_t i = 0; i < count; i += 16) {
    for (int k = 0; k < 16; ++k) {
      x[i + k] *= factors[i + k];
      sums[k] += x[i + k];
      most[k] = std::max(most[k], x[i + k]);
    }
  }
  for (const float part : sums) *sum += part;
  const float largest = *std::max_element(most, most + 16), factor = to_bytes(largest);
  for (std::int32_t i = 0; i < count; ++i) to[i] = nearest_byte(x[i] * factor);
  return largest;
}

[[maybe_unused]] float round_plain(const float* x, std::int32_t count, std::int8_t* to,
                                   float* sum) noexcept {
  float sums[4] = {}, most = 0.0f;
  for (std::int32_t i = 0; i < count; ++i) {
    sums[i % 4] += x[i];
    most = std::max(most, std::abs(x[i]));
  }
  *sum += (sums[0] + sums[1]) + (sums[2] + sums[3]);
  const float factor = to_bytes(most);
  for (std::int32_t i = 0; i < count; ++i) {
    to[i] = nearest_byte(x[i] * factor);
  }
  return most;
}

}  // namespace
}  // namespace kvspan::detail
