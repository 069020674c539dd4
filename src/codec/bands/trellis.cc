// SPDX-License-Identifier: Apache-2.0
#include "codec/bands/trellis.h"

#if defined(__aarch64__)
#include <arm_neon.h>
#endif

#include <algorithm>
#include <cmath>
#include <utility>


namespace kvspan {
namespace {

// By bits, printed by scripts/design_trellis.py.
constexpr std::int8_t kTables[kTrellisMaxBits][kTrellisEntries] = {
    {-5, 2,  -6, 2, 1,  -6, 2, -6, -2, 5,  -2, 7,  6, -3, 6,  -3, -8, 1, -8, 1,  1, -6,
     2,  -7, -2, 6, -2, 6,  7, -3, 6,  -2, 1,  -6, 2, -6, -8, 1,  -7, 2, 6,  -3, 9, -2,
     -2, 7,  -2, 7, 1,  -9, 1, -9, -8, 1,  -6, 1,  5, -3, 5,  -2, -3, 4, -3, 6},
    {-16, -7,  1,  11, -6,  -19, 10, 2,  -12, -2,  6,  22, -2,  -11, 16, 5,
     -21, -6,  2,  11, -7,  -17, 11, 2,  -12, -2,  5,  15, -2,  -12, 27, 6,
     -6,  -19, 10, 1,  -16, -6,  2,  11, -3,  -11, 19, 5,  -11, -2,  6,  17,
     -8,  -20, 11, 2,  -29, -7,  2,  10, -3,  -12, 16, 5,  -12, -2,  6,  17},
    {-44, -27, -16, -7,  2,  11, 20, 34, -27, -51, -6,  -16, 10, 2,  36, 20,
     -35, -21, -11, -2,  6,  15, 27, 45, -22, -35, -2,  -11, 15, 6,  63, 26,
     -28, -44, -7,  -16, 10, 2,  33, 20, -62, -27, -16, -7,  1,  10, 20, 36,
     -22, -36, -2,  -11, 15, 6,  43, 26, -34, -21, -11, -3,  6,  15, 26, 50},
    {-103, -71,  -55, -43, -33, -25, -16, -7,  1,  10, 19, 27, 37, 48, 61,  81,
     -80,  -61,  -49, -38, -29, -20, -11, -2,  6,  15, 23, 32, 43, 55, 70,  100,
     -70,  -127, -43, -54, -24, -34, -7,  -15, 10, 2,  28, 19, 48, 37, 87,  62,
     -62,  -90,  -38, -48, -20, -29, -3,  -11, 15, 6,  33, 24, 55, 42, 126, 71},
    {-127, -93, -77, -68, -62, -57, -51, -47, -41, -36, -31, -25, -20, -15, -10, -5,
     0,    5,   10,  15,  20,  25,  30,  36,  41,  46,  51,  57,  63,  71,  82,  101,
     -105, -83, -72, -64, -58, -53, -48, -42, -37, -32, -27, -21, -16, -11, -6,  -1,
     4,    9,   14,  19,  24,  30,  34,  40,  45,  50,  56,  61,  67,  76,  90,  123},
    {1,    4,    7,   10,  13,  16,  19,  22,  25,  28,  31,  34,  37,  40,  43,  46,
     49,   52,   55,  58,  61,  64,  67,  70,  73,  77,  80,  84,  90,  98,  109, 126,
     -125, -107, -97, -91, -86, -81, -77, -74, -71, -68, -65, -62, -59, -56, -53, -50,
     -47,  -44,  -41, -38, -35, -32, -29, -26, -23, -20, -17, -14, -11, -8,  -5,  -2}};
constexpr double kUnits[kTrellisMaxBits] = {5.5386, 10.6390, 20.4768, 39.1923, 37.8464, 33.5832};
constexpr double kDistortions[kTrellisMaxBits] = {0.29556, 0.08041, 0.02167,
                                                  0.00593, 0.00203, 0.00075};

// Lowest bits of earlier codes that have a say.
constexpr int memory_of(int width) {
  return kTrellisMaxBits - width;
}

// Whether the fifth bit of h has no say.
constexpr bool forgets_fifth(int width) {
  return memory_of(width) < 5;
}

std::uint8_t index_of(int width, std::uint8_t history, std::int8_t code) {
  const auto low = static_cast<unsigned>(code) & ((1u << width) - 1u);
  return static_cast<std::uint8_t>((unsigned{history} << width | low) % kTrellisEntries);
}

// Of T_w: T + 1/2, which x is compared with.
constexpr auto kLevels = [] {
  std::array<std::array<float, kTrellisEntries>, kTrellisMaxBits> levels{};
  for (std::size_t w = 0; w < levels.size(); ++w) {
    for (std::size_t i = 0; i < kTrellisEntries; ++i) levels[w][i] = static_cast<float>(kTables[w][i]) + 0.5f;
  }
  return levels;
}();

const float* levels_of(int width) {
  return kLevels[static_cast<std::size_t>(width - 1)].data();
}

std::uint8_t after(std::uint8_t history, std::int8_t code) {
  return static_cast<std::uint8_t>(history << 1 | (code & 1));
}

// |x - level|, and the smaller of two: on Arm single instructions that compilers do not find.
template <typename Lanes>
Lanes distance(Lanes x, float level) {
#if defined(__aarch64__)
  return vabdq_f32(x, vdupq_n_f32(level));
#else
  const Lanes off = x - level;
  return off < 0.0f ? -off : off;
#endif
}

template <typename Lanes>
Lanes smaller(Lanes a, Lanes b) {
#if defined(__aarch64__)
  return vminq_f32(a, b);
#else
  return b < a ? b : a;
#endif
}

}  // namespace

const std::int8_t* trellis_table(int bits) noexcept {
  return kTables[bits - 1];
}

double trellis_units(int bits) noexcept {
  return kUnits[bits - 1];
}

double trellis_distortion(int bits) noexcept {
  return kDistortions[bits - 1];
}

TrellisEncoder::Lanes TrellisEncoder::load(const float* from) {
  return Lanes{from[0], from[1], from[2], from[3]};
}

// What the nearest codes of a quad leave, by the bits that matter, the newest lowest: [2^(7 - kWidth)].
template <int kWidth>
void TrellisEncoder::measure(Lanes x, Lanes weights, Lanes* least) {
  constexpr int kHighs = 1 << (kWidth - 1), kBefore = 1 << memory_of(kWidth);
  const float* levels = levels_of(kWidth);
#pragma GCC unroll 4
  for (int before = 0; before < kBefore; ++before, levels += 2 * kHighs) {
#pragma GCC unroll 2
    for (int bit = 0; bit < 2; ++bit) {
      Lanes best = distance(x, levels[bit]);
#pragma GCC unroll 32
      for (int high = 1; high < kHighs; ++high) best = smaller(best, distance(x, levels[high << 1 | bit]));
      least[before << 1 | bit] = weights * (best * best);
    }
  }
}

template <int kWidth>
void TrellisEncoder::advance(Lanes x, Lanes weights, const Lanes* cost, Lanes* next, Mask* steps) {
  constexpr std::size_t kMatter = (std::size_t{1} << memory_of(kWidth)) - 1;
  std::array<Lanes, 2 << memory_of(kWidth)> least;
  measure<kWidth>(x, weights, least.data());
#pragma GCC unroll 16
  for (std::size_t from = 0; from < kStates / 2; ++from) {
    const std::size_t other = from | kStates / 2;
    if constexpr (forgets_fifth(kWidth)) {
      // Both states have the same codes before them: the cheaper one goes on, whatever comes.
      const Lanes best = smaller(cost[from], cost[other]);
      steps[from] = cost[other] < cost[from];
      next[from << 1] = best + least[(from & kMatter) << 1];
      next[from << 1 | 1] = best + least[(from & kMatter) << 1 | 1];
    } else {
      for (std::size_t bit = 0; bit < 2; ++bit) {
        const Lanes one = cost[from] + least[from << 1 | bit];
        const Lanes two = cost[other] + least[other << 1 | bit];
        steps[from << 1 | bit] = two < one;
        next[from << 1 | bit] = smaller(one, two);
      }
    }
  }
}

void TrellisEncoder::encode(std::span<const std::uint8_t> widths, const float* x,
                            const float* weights, std::int8_t* codes, std::int8_t* values) {
  static constexpr Advance kAdvance[] = {nullptr, &advance<1>, &advance<2>, &advance<3>,
                                         &advance<4>, &advance<5>, &advance<6>};
  steps_.resize(widths.size());
  Lanes *cost = costs_[0].data(), *next = costs_[1].data();
  std::fill_n(cost, kStates, Lanes{} + 1e30f);
  cost[0] = Lanes{};
  for (std::size_t q = 0; q < widths.size(); ++q) {
    if (widths[q] > kTrellisMaxBits) continue;
    kAdvance[widths[q]](load(x + 4 * q), load(weights + 4 * q), cost, next, steps_[q].data());
    std::swap(cost, next);
  }
  for (std::size_t i = 0; i < 4; ++i) trace(widths, x, cost, i, codes, values);
}

// Back along the best path of one chain. Upper bits of its codes are those nearest to the numbers.
void TrellisEncoder::trace(std::span<const std::uint8_t> widths, const float* x, const Lanes* cost,
                           std::size_t chain, std::int8_t* codes, std::int8_t* values) const {
  std::size_t state = 0;
  for (std::size_t s = 1; s < kStates; ++s) {
    if (cost[s][chain] < cost[state][chain]) state = s;
  }
  for (std::size_t q = widths.size(); q-- > 0;) {
    const int width = widths[q];
    if (width > kTrellisMaxBits) continue;  // its code is not of the trellis
    const std::size_t step = forgets_fifth(width) ? state >> 1 : state;
    const std::size_t from = state >> 1 | (steps_[q][step][chain] != 0 ? kStates / 2 : 0);
    const std::size_t history = (from << width) % kTrellisEntries;
    const float* levels = levels_of(width) + history;
    int low = static_cast<int>(state & 1);
    float best = std::fabs(x[4 * q + chain] - levels[low]);
    for (int trial = low + 2; trial < 1 << width; trial += 2) {
      const float off = std::fabs(x[4 * q + chain] - levels[trial]);
      if (off >= best) continue;
      best = off;
      low = trial;
    }
    values[4 * q + chain] = trellis_table(width)[history + static_cast<std::size_t>(low)];
    // Two's complement within the width.
    codes[4 * q + chain] =
        static_cast<std::int8_t>(low < 1 << (width - 1) ? low : low - (1 << width));
    state = from;
  }
}

void trellis_values(std::span<const std::uint8_t> widths, const std::int8_t* codes,
                    std::int8_t* values) noexcept {
  std::array<std::uint8_t, 4> history{};
  for (std::size_t q = 0; q < widths.size(); ++q) {
    for (std::size_t i = 0; i < 4; ++i) {
      const std::int8_t code = codes[4 * q + i];
      values[4 * q + i] = code;
      if (widths[q] > kTrellisMaxBits) continue;
      values[4 * q + i] = trellis_table(widths[q])[index_of(widths[q], history[i], code)];
      history[i] = after(history[i], code);
    }
  }
}

void trellis_values(int width, std::int8_t* codes, std::size_t quads, std::uint8_t* history) noexcept {
  for (; quads > 0; --quads, codes += kTrellisEntries) {
    for (int i = 0; i < kTrellisEntries; ++i) {
      const std::int8_t code = codes[i];
      codes[i] = trellis_table(width)[index_of(width, history[i], code)];
      history[i] = after(history[i], code);
    }
  }
}

}  // namespace kvspan
