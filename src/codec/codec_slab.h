// SPDX-License-Identifier: Apache-2.0
// How the codec walks a matrix: slabs of components by tiles of rows. Internal to the codec room.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

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

// Of a run of a mixed codec with 8, 4 or 2 bits.
const PackKernels& mixed_pack_kernels(const CodecKernels& kernels, int bits) noexcept;

// Whether one scale serves each chunk of 32.
inline bool scales_per_chunk(const CodecSpec& spec) noexcept {
  return spec.unit_cols % kCodecChunk == 0;
}

// Payloads of 16-bit kinds and scales are read as what they are.
inline bool aligned_for(const CodecSpec& spec, const std::byte* payload,
                        const std::byte* scales) noexcept {
  const std::size_t unit =
      spec.kind == CodecKind::kF16 || spec.kind == CodecKind::kBf16 ? alignof(Half) : 1;
  const std::size_t scale_unit = spec.scale == ScaleType::kF32 ? alignof(float) : alignof(Half);
  return reinterpret_cast<std::uintptr_t>(payload) % unit == 0 &&
         (!is_integer(spec.kind) || reinterpret_cast<std::uintptr_t>(scales) % scale_unit == 0);
}

template <class T>
TensorView<T, 2> rows_of(const TensorView<T, 2>& all, std::size_t first, std::size_t count) {
  return {all.row(first), {count, all.shape[1]}, all.strides};
}

}  // namespace kvspan
