// SPDX-License-Identifier: Apache-2.0
#include "cache/rope.h"

#include <cmath>
#include <cstddef>

#include "base/fail.h"

namespace kvspan {
namespace {

void turn_pair(float& x, float& y, float c, float s) noexcept {
  const float turned = c * x - s * y;
  y = s * x + c * y;
  x = turned;
}

void turn_rows(const Rope& rope, std::int32_t position, double scale, float* row, std::int32_t rows,
               std::int32_t stride) noexcept {
  for (std::size_t i = 0; i < rope.angles.size(); ++i) {
    const double angle = rope.angles[i] * position;
    const auto c = static_cast<float>(scale * std::cos(angle));
    const auto s = static_cast<float>(scale * std::sin(angle));
    const auto [first, second] = rope_pair(rope, i);
    float* at = row;
    for (std::int32_t r = 0; r < rows; ++r, at += stride) turn_pair(at[first], at[second], c, s);
  }
}

}  // namespace

Status check_rope(const Rope& rope, std::int32_t dim) {
  if (rope.rotated_dims < 0 || rope.rotated_dims % 2 != 0 || rope.rotated_dims > dim) {
    return fail(ErrorCode::kInvalidArgument,
                "rope rotates {} of {} dimensions; allowed: an even number up to all",
                rope.rotated_dims, dim);
  }
  if (rope.angles.size() != static_cast<std::size_t>(rope.rotated_dims / 2)) {
    return fail(ErrorCode::kInvalidArgument, "rope has {} angles for {} rotated dimensions",
                rope.angles.size(), rope.rotated_dims);
  }
  for (std::size_t i = 0; i < rope.angles.size(); ++i) {
    if (!std::isfinite(rope.angles[i])) {
      return fail(ErrorCode::kInvalidArgument, "rope angle {} is {}", i, rope.angles[i]);
    }
  }
  if (!std::isfinite(rope.magnitude) || rope.magnitude == 0.0f) {
    return fail(ErrorCode::kInvalidArgument, "rope magnitude is {}; allowed: finite, not 0",
                rope.magnitude);
  }
  return {};
}

void rope_turn(const Rope& rope, std::int32_t position, float scale, float* cosines,
               float* sines) noexcept {
  for (std::size_t i = 0; i < rope.angles.size(); ++i) {
    const double angle = rope.angles[i] * position;
    cosines[i] = static_cast<float>(double{scale} * std::cos(angle));
    sines[i] = static_cast<float>(double{scale} * std::sin(angle));
  }
}

void apply_turn(const Rope& rope, const float* cosines, const float* sines, float* row) noexcept {
  const std::size_t n = rope.angles.size();
  if (rope.pairs == Rope::Pairs::kNeighbours) {
    for (std::size_t i = 0; i < n; ++i) turn_pair(row[2 * i], row[2 * i + 1], cosines[i], sines[i]);
    return;
  }
  float* const second = row + n;
  for (std::size_t i = 0; i < n; ++i) turn_pair(row[i], second[i], cosines[i], sines[i]);
}

void rope_rotate(const Rope& rope, std::int32_t position, float* row, std::int32_t rows,
                 std::int32_t stride) noexcept {
  turn_rows(rope, position, rope.magnitude, row, rows, stride);
}

void rope_unrotate(const Rope& rope, std::int32_t position, float* row, std::int32_t rows,
                   std::int32_t stride) noexcept {
  turn_rows(rope, -position, 1.0 / rope.magnitude, row, rows, stride);
}

void rope_offset(const Rope& rope, std::int32_t offset, float* row, std::int32_t rows,
                 std::int32_t stride) noexcept {
  turn_rows(rope, offset, 1.0, row, rows, stride);
}

}  // namespace kvspan
