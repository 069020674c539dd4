// SPDX-License-Identifier: Apache-2.0
// How scores read packed codes without taking them apart: a word of four bytes of codes is shifted
// left, and every byte of what results is a factor of a matrix product. In such a byte one code lies
// on top; below it, and counting little, lie others of the same token, from the bytes beneath too.
// All of that is linear in the codes, so that coefficients of the bytes can be found with which the
// products sum to what single codes would give. Nothing is masked; the price is paid once, when
// coefficients are made.
//
// A unit is what one word of four lanes gives for each token: 4 words s of 4 bytes k, 64 bytes in
// all, numbered 16 lane + 4 s + k. Its kind tells how the words are made of a chunk's planes
// (cuda/bands/bands_tiles.h):
//
//     1  fields of 1 bit    (v | (v << 4 & 0xfff0) << 16) << s, v the lane's 16 bits
//     2  fields of 2 bits   w << 2 s
//     4  fields of 4 bits   w << 4 (s % 2), w of plane s / 2
//     8  fields of 8 bits   w of plane s
//
// A coefficient U counts U times its byte times 2^-exponent. Units come by rising exponent, so that
// a reader keeps one sum: before a unit it is shifted by as much as the exponent has risen.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "cuda/bands/bands_tiles.h"

namespace kvspan::cuda {

// Coefficients of one unit lie as above. Where all codes have 2 bits those of two units lie together
// in a panel of 128 bytes, so that one operand is made of both: 64 (s / 2) + 16 lane + 8 (s % 2) +
// 4 (unit % 2) + k.
struct PanelByte {
  int unit, lane, word, byte;  // unit: of those of the panel
};
constexpr PanelByte panel_byte(int panel_units, int at) {
  if (panel_units == 1) return {0, at / 16, at % 16 / 4, at % 4};
  return {at % 8 / 4, at % 64 / 16, at / 64 * 2 + at % 16 / 8, at % 4};
}

inline constexpr int kMaxUnits = 48;

// Of the words above, from a lane's words (kind 1: 16 bits) of a token.
KVSPAN_HOST_DEVICE constexpr std::uint32_t spread_bits(std::uint32_t v) {
  return v | (v << 4 & 0xfff0u) << 16;
}

struct ScoreUnit {
  int chunk;
  int offset;    // of the first plane, in bytes of a tile
  int kind;
  int exponent;
  int weight;    // what a field's 1 counts in the chunk's codes, a power of two
};

// Of a kind: what 16 bytes of a lane make of its 16 fields, and the way back.
struct UnitForm {
  // Field 4 k + f is place 16 lane + 4 k + f of the chunk.
  std::array<std::array<int, 16>, 16> bytes;         // [byte][field]: what a field's 1 adds
  std::array<std::array<double, 16>, 16> inverse;    // [byte][field]: u = inverse q
  std::array<std::uint8_t, 16> full;                 // bytes where all fields have all bits
  int exponent;                                      // of U = 2^exponent u for a weight of 1
};
const UnitForm& unit_form(int kind);

// Units of all chunks, by exponent.
std::vector<ScoreUnit> score_units(const BandsTiles& tiles);

}  // namespace kvspan::cuda
