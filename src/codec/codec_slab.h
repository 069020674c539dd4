// SPDX-License-Identifier: Apache-2.0
// How the codec walks a matrix: slabs of components by tiles of rows. Internal to the codec room.
#pragma once

#include <array>
#include <cstddef>

#include "codec/codec.h"

namespace kvspan {

// Rows are worked on in slabs of this many components, a multiple of the chunk, so that everything
// between the passes lies in the first-level cache.
inline constexpr std::size_t kSlab = kResidualMax;
static_assert(kSlab % kCodecChunk == 0);

// Scales, offsets and inverse scales of up to kSlab components, per chunk or per component.
struct Codec::Slab {
  std::array<float, kSlab> scale, offset, inverse;
};

// Whether one scale serves each chunk of 32.
inline bool scales_per_chunk(const CodecSpec& spec) noexcept {
  return spec.unit_cols % kCodecChunk == 0;
}

template <class T>
TensorView<T, 2> rows_of(const TensorView<T, 2>& all, std::size_t first, std::size_t count) {
  return {all.row(first), {count, all.shape[1]}, all.strides};
}

}  // namespace kvspan
