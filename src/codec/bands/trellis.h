// SPDX-License-Identifier: Apache-2.0
// Trellis coded quantization of band components with 1 to 6 bits: what a code stands for depends on
// the codes before it, so that neighbouring components share levels twice as fine as their bits
// would pay for, and a search over paths finds the codes. Against the uniform quantizer the error
// falls by 19 % at 1 bit, 32 % at 2 and 42 % at 3, for the same bytes.
//
// A token's components form four chains, one for each place of a quad; a chain goes from quad to
// quad, through all widths. With h the lowest bits of a chain's codes so far, the newest lowest, a
// code of w bits stands for
//     step (T_w[(h << w | code) mod 64] + 1/2)            T_w int8 [64]
// and h becomes h << 1 | code mod 2. So 6 - w earlier codes have a say, and a table of 64 is read
// by one instruction on Arm; h is 0 before the first quad. Quads of 8 bits stay as they are and
// leave h alone. The tables' values count in about equal steps where bits are spent best
// (scripts/design_trellis.py, which made them).
// Source: M. W. Marcellin and T. R. Fischer, Trellis coded quantization of memoryless and
// Gauss-Markov sources, IEEE Trans. Communications 38, 1990; G. Ungerboeck's codes, 1982.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>


namespace kvspan {

inline constexpr int kTrellisMaxBits = 6;
inline constexpr int kTrellisEntries = 64;  // of a table

// T_w, 1 <= bits <= 6.
const std::int8_t* trellis_table(int bits) noexcept;
// Steps in the root mean square of Gaussian numbers that the table was made for.
double trellis_units(int bits) noexcept;
// Mean squared error for Gaussian numbers of variance 1.
double trellis_distortion(int bits) noexcept;

// Finds a token's codes. Cost: some 350 operations on four lanes a quad. Not thread safe.
class TrellisEncoder {
 public:
  // x [4 quads]: components divided by their steps; weights [4 quads]: what a squared error of each
  // counts, the square of its step. widths [quads]. codes [4 quads], two's complement within their
  // widths: of all sequences of codes those of least weighed error, in float. values [4 quads]: what they stand for.
  // Quads of more than kTrellisMaxBits are left as they are, in both.
  void encode(std::span<const std::uint8_t> widths, const float* x, const float* weights,
              std::int8_t* codes, std::int8_t* values);

 private:
  static constexpr std::size_t kStates = 32;  // the five lowest bits of h
  // Of the four chains; the compiler's own vectors, since a path is found by comparisons alone.
  using Lanes = float __attribute__((vector_size(16)));
  using Mask = std::int32_t __attribute__((vector_size(16)));

  static Lanes load(const float* from);
  template <int kWidth>
  static void measure(Lanes x, Lanes weights, Lanes* least);
  // One quad: costs of states, from `cost` to `next`, and the steps that are taken.
  template <int kWidth>
  static void advance(Lanes x, Lanes weights, const Lanes* cost, Lanes* next, Mask* steps);
  using Advance = void (*)(Lanes x, Lanes weights, const Lanes* cost, Lanes* next, Mask* steps);
  void trace(std::span<const std::uint8_t> widths, const float* x, const Lanes* cost, std::size_t chain,
             std::int8_t* codes, std::int8_t* values) const;

  std::vector<std::array<Mask, kStates>>
      steps_;  // by quad and new state, or its upper four bits: whether h's fifth bit was 1
  std::array<std::array<Lanes, kStates>, 2> costs_;
};

// Codes of one token [4 quads] to what they stand for, v of step (v + 1/2); in place is allowed.
void trellis_values(std::span<const std::uint8_t> widths, const std::int8_t* codes,
                    std::int8_t* values) noexcept;

// The same of 16 tokens, codes as unpacked: [quads][16 tokens][4 places] of one width, in place;
// history [64], h of the 64 chains.
void trellis_values(int width, std::int8_t* codes, std::size_t quads, std::uint8_t* history) noexcept;

}  // namespace kvspan
