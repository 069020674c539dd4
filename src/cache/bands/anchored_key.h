// SPDX-License-Identifier: Apache-2.0
// RoPE of reconstructed keys, a pair of numbers at a time. Arithmetic alone, so that nvcc compiles it for devices
// (--expt-relaxed-constexpr) and tests run on the host what devices run.
#pragma once

namespace kvspan {

// A pair rotated by an angle, of which `by` has cosine and sine. Two: float2, or what has its x and y.
template <class Two>
constexpr Two rotated(Two pair, Two by) {
  return {pair.x * by.x - pair.y * by.y, pair.y * by.x + pair.x * by.y};
}

// BandsCode::to_key of anchored keys: m Rot(t_a) (x + Rot(t - t_a) mu). `to_anchor` has the angles of t_a,
// `offset` those of t - t_a; both differ from pair to pair.
template <class Two>
constexpr Two anchored_key(Two pair, Two mean, Two offset, Two to_anchor, float magnitude) {
  const Two there = rotated(mean, offset);
  const Two key = rotated({pair.x + there.x, pair.y + there.y}, to_anchor);
  return {magnitude * key.x, magnitude * key.y};
}

}  // namespace kvspan
