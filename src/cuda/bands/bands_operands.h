// SPDX-License-Identifier: Apache-2.0
// A code of bands as kernels take it: matrices in the order of their operands, all still on the
// host.
#pragma once

#include <cstdint>
#include <vector>

#include "base/half.h"
#include "cache/bands/anchored_means.h"
#include "cache/bands/bands_code.h"
#include "cuda/bands/bands_tiles.h"
#include "cuda/bands/score_units.h"

namespace kvspan::cuda {

// places below are those of the digits of all chunks, empty ones included (cuda/bands/bands_tiles.h);
// components those of the code's layout, padded.
struct BandsOperands {
  BandsTiles tiles;
  std::vector<ScoreUnit> units;
  std::vector<Half> key_basis;         // [heads][units * 4][key_steps][32 lanes][8], move_queries.cuh
  std::vector<float> key_scales;       // [heads], of the basis
  std::vector<float> key_means;        // [heads][key_dim], turned by half a position back
  std::vector<Half> value_basis;       // [heads * value_dim][places]
  std::vector<float> value_scales;     // [heads * value_dim][2]: scale of a row, and mean
  std::vector<float> steps;            // [places], of digits; 0 at empty ones
  std::vector<float> analysis;         // A' [D][components]
  std::vector<float> means;            // [D]
  std::vector<float> inverse_steps, inverse_sigma, reach, lowest, highest;  // [components]
  std::vector<BandsTiles::QuadDigits> quad_digits;                          // [components / 4]
};

// chunks, components: at least those of the code. key_steps: of 16 numbers of a key.
// paired: the chunks that a kernel for digits of 2 bits reads (paired_units), or 0.
BandsOperands bands_operands(const BandsCode& code, int chunks, int components, int paired, int key_steps);

// What rebuilds rows from codes, of one group after the other.
struct SynthesisOperands {
  std::vector<Half> rows;     // B [D][places], steps in it, over the rows' scales
  std::vector<float> scales;  // [D]
  void add(const BandsCode& code, int chunks);
};

// Products of queries with the mean of keys (cache/bands/anchored_means.h), for blocks of kMeanBlock.
struct MeanOperands {
  std::int32_t terms = 0;            // padded to whole steps of 16
  std::int32_t alone = 0, slow = 0;  // pairs
  // Of slow pairs, [(slow + 7) / 8][32 lanes][2][2]: the polynomial in place lane / 4 of pairs lane % 4 and
  // lane % 4 + 4 of eight, for the first number of a product, odd ones with the other sign, and for the second.
  std::vector<float> polynomials;
  std::vector<Half> table;           // fragments [4 tiles][2][terms / 16][32 lanes][8]
};
MeanOperands mean_operands(const AnchoredMeans& means);

// Cosine and sine of all pairs, [count][pairs][2], at positions first, first + step, ...
std::vector<float> turn_table(const Rope& rope, std::int64_t first, std::int64_t step,
                              std::int64_t count);

}  // namespace kvspan::cuda
