// SPDX-License-Identifier: Apache-2.0
// Rotary position embedding applied to rows: R(t) turns each pair by t * angle and scales it by the
// rope's magnitude m. With the pure rotation Rot: R(t) = m Rot(t), R(t)^T = m Rot(-t),
// R(t)^-1 = Rot(-t) / m on the rotated coordinates, the identity on the others; R(s) Rot(t) = R(s +
// t). Angles are reduced in double, so a turn's error is that of f32 sines at any position.
// Source: Su et al., 2021 (RoFormer).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kvspan/cache.h"
#include "kvspan/result.h"

namespace kvspan {

// Fails where the rope does not fit rows of `dim` numbers: rotated_dims odd, negative or above dim,
// not one angle per pair, an angle or magnitude that is not finite, magnitude 0.
Status check_rope(const Rope& rope, std::int32_t dim);

// The two coordinates of pair i.
struct RopePair {
  std::size_t first;
  std::size_t second;
};
constexpr RopePair rope_pair(const Rope& rope, std::size_t i) noexcept {
  if (rope.pairs == Rope::Pairs::kNeighbours) return {2 * i, 2 * i + 1};
  return {i, i + rope.angles.size()};
}

// The middle of the block of `block` positions that a position lies in: what anchored keys are
// turned back to.
constexpr std::int32_t anchor_position(std::int32_t position, std::int32_t block) noexcept {
  return position / block * block + block / 2;
}

// What a turn does to each pair: [rotated_dims / 2] of scale * cos and scale * sin.
// Turn of R(t): position t, scale m. Of R(t)^T: position -t, scale m. Of R(t)^-1: position -t,
// scale 1 / m. Of Rot(t): position t, scale 1.
void rope_turn(const Rope& rope, std::int32_t position, float scale, float* cosines,
               float* sines) noexcept;
// Turns one row of at least rotated_dims numbers in place.
void apply_turn(const Rope& rope, const float* cosines, const float* sines, float* row) noexcept;

// row <- R(position) row and row <- R(position)^-1 row, of `rows` rows that lie `stride` apart; no
// tables, for readers of single positions.
void rope_rotate(const Rope& rope, std::int32_t position, float* row, std::int32_t rows = 1,
                 std::int32_t stride = 0) noexcept;
void rope_unrotate(const Rope& rope, std::int32_t position, float* row, std::int32_t rows = 1,
                   std::int32_t stride = 0) noexcept;
// row <- Rot(offset) row.
void rope_offset(const Rope& rope, std::int32_t offset, float* row, std::int32_t rows = 1,
                 std::int32_t stride = 0) noexcept;

}  // namespace kvspan
