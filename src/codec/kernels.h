// SPDX-License-Identifier: Apache-2.0
// The inner loops of the codecs, one table per instruction-set level. All pointers may be unaligned
// to the vector width (floats to 4 bytes, halves to 2); n may be 0; inputs and outputs do not
// overlap. Nothing outside the n elements, or packed_bytes(bits, n) bytes, is read or written.
//
// Every level gives the same bits as the reference, except `residual`, whose promise is below, the
// sign of a zero from widen_range and widen_columns, and the payload of NaNs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/cpu_level.h"
#include "base/half.h"
#include "codec/packed_rows.h"

namespace kvspan {

// Codes of one width in the layout of packed_rows.h; `packed` points at a chunk's start.
struct PackKernels {
  void (*pack)(const std::int8_t* codes, std::size_t n, std::uint8_t* packed) noexcept;
  void (*unpack)(const std::uint8_t* packed, std::size_t n, std::int8_t* codes) noexcept;
  // out[i] = fma(scale, code i, offset), rounded once. Scale and offset are [ceil(n / 32)], one per
  // chunk, or [n], one per component.
  void (*decode_chunks)(const std::uint8_t* packed, std::size_t n, const float* scale,
                        const float* offset, float* out) noexcept;
  void (*decode_columns)(const std::uint8_t* packed, std::size_t n, const float* scale,
                         const float* offset, float* out) noexcept;
};

// What a stretch of numbers lost.
struct Residual {
  double squares = 0;  // sum of (x - y)^2
  float largest = 0;   // max |x - y|, rounded
};

struct CodecKernels {
  PackKernels int8, int4, int3, int2;

  // codes[i] = round((x[i] - offset) * inverse) clamped to lowest..highest; ties to even; both
  // operations rounded to f32. Inverse and offset are per chunk of 32 or per component.
  void (*quantize_chunks)(const float* x, std::size_t n, const float* inverse, const float* offset,
                          int lowest, int highest, std::int8_t* codes) noexcept;
  void (*quantize_columns)(const float* x, std::size_t n, const float* inverse, const float* offset,
                           int lowest, int highest, std::int8_t* codes) noexcept;

  // codes[i] = floor(x[i] * inverse[i]) clamped to lowest[i]..highest[i], all [n]; the bounds are
  // whole numbers within int8 (midrise.h).
  void (*quantize_midrise)(const float* x, std::size_t n, const float* inverse, const float* lowest,
                           const float* highest, std::int8_t* codes) noexcept;

  // Largest |x[i]| as the bits of a float: 0x7f800000 and above when something is not finite.
  std::uint32_t (*max_magnitude)(const float* x, std::size_t n) noexcept;
  // Widens [*low, *high] to hold every x[i]; the numbers are finite.
  void (*widen_range)(const float* x, std::size_t n, float* low, float* high) noexcept;
  // The same per component: low[i], high[i] by x[i].
  void (*widen_columns)(const float* x, std::size_t n, float* low, float* high) noexcept;

  // Adds the squares of x - y to r->squares and raises r->largest. n <= kResidualMax. The sum added
  // is at least the true one times 1 - 2^-19, less n 2^-148 (f32 sums of 16 lanes: the difference,
  // its square, n / 16 additions and 4 to join the lanes round once each, the first counting twice,
  // by 2^-24; squares below the normal range lose at most 2^-149 each). It may be infinite where
  // the true one is not. Each |x - y| is rounded once to f32.
  void (*residual)(const float* x, const float* y, std::size_t n, Residual* r) noexcept;

  void (*f32_to_f16)(const float* x, std::size_t n, Half* out) noexcept;
  void (*f16_to_f32)(const Half* x, std::size_t n, float* out) noexcept;
  void (*f32_to_bf16)(const float* x, std::size_t n, BFloat16* out) noexcept;
  void (*bf16_to_f32)(const BFloat16* x, std::size_t n, float* out) noexcept;
};

inline constexpr std::size_t kResidualMax = 256;

// The table of a level this processor has. AVX-512 uses the AVX2 loops.
const CodecKernels& codec_kernels(CpuLevel level) noexcept;

namespace detail {
// Defined each in a source file of its own, compiled for its instruction set.
extern const CodecKernels kCodecKernelsRef;
extern const CodecKernels kCodecKernelsNeon;
extern const CodecKernels kCodecKernelsAvx2;
}  // namespace detail

}  // namespace kvspan
