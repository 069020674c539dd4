// SPDX-License-Identifier: Apache-2.0
// How scores read packed digits without taking them apart: a word of four bytes of digits is shifted
// left, and every byte of what results is a factor of a matrix product. In such a byte one digit lies
// on top; below it, and counting little, lie others of the same token, from the bytes beneath too.
// All of that is linear in the digits, so that coefficients of the bytes can be found with which the
// products sum to what single digits would give. Nothing is masked; the price is paid once, when
// coefficients are made.
//
// A unit is what a chunk gives for each token: 4 words s of 4 bytes k in each of four lanes, 64 bytes in
// all, numbered 16 lane + 4 s + k. Its kind is the width of the chunk's digits, and tells how the words
// are made (cuda/bands/bands_tiles.h):
//
//     1  (v | (v << 4 & 0xfff0) << 16) << s, v the lane's 16 bits
//     2  w << 2 s, w the lane's word
//
// A coefficient U counts U times its byte times 2^-exponent; that of digits that lie high in their codes
// is lower, so that coefficients are about as large as the moved query whatever digits they are for. What
// rounding leaves of coefficients of the highest digits would count much in all of their chunk: such a chunk
// has a second unit, for what is left. Units come by rising exponent, so that a reader keeps one sum: before a unit it is shifted by as much as
// the exponent has risen.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "cuda/bands/bands_tiles.h"

namespace kvspan::cuda {

// Coefficients of one unit lie as above. Where all digits have 2 bits those of two units lie together
// in a panel of 128 bytes, so that one operand is made of both: 64 (s / 2) + 16 lane + 8 (s % 2) +
// 4 (unit % 2) + k.
struct PanelByte {
  int unit, lane, word, byte;  // unit: of those of the panel
};
constexpr PanelByte panel_byte(int panel_units, int at) {
  if (panel_units == 1) return {0, at / 16, at % 16 / 4, at % 4};
  return {at % 8 / 4, at % 64 / 16, at / 64 * 2 + at % 16 / 8, at % 4};
}

inline constexpr int kMaxUnits = 2 * kMaxChunks;
inline constexpr int kRefinedBits = 7;  // a second unit's coefficients count 2^-7 of the first's

// Of the words above, from a lane's 16 bits of a token.
KVSPAN_HOST_DEVICE constexpr std::uint32_t spread_bits(std::uint32_t v) {
  return v | (v << 4 & 0xfff0u) << 16;
}

struct ScoreUnit {
  int chunk;
  int offset;  // in bytes of a tile
  int kind;
  int shift;  // of the digits that coefficients are not made less for
  int exponent;
  bool refines = false;  // its coefficients are what rounding left of those of the chunk's other unit
};

// Of a kind: what 16 bytes of a lane make of its 16 digits, and the way back.
struct UnitForm {
  // Field 4 k + f is place 16 lane + 4 k + f of the chunk.
  std::array<std::array<int, 16>, 16> bytes;         // [byte][field]: what a field's 1 adds
  std::array<std::array<double, 16>, 16> inverse;    // [byte][field]: u = inverse q
  std::array<std::uint8_t, 16> full;                 // bytes where all fields have all bits
  int exponent;                                      // of U = 2^exponent u for the lowest digits
};
const UnitForm& unit_form(int kind);

// Of all chunks, by exponent.
std::vector<ScoreUnit> score_units(const BandsTiles& tiles);
// Where all digits have 2 bits: of `chunks` chunks, an even number, of which those that tiles do not have are
// empty. Units come in pairs of neighbours with one exponent; those that refine come last.
std::vector<ScoreUnit> paired_units(const BandsTiles& tiles, int chunks);

}  // namespace kvspan::cuda
