// SPDX-License-Identifier: Apache-2.0
// Scalar codecs over rows of coefficients: rows of floats in, bytes out, and back.
//
// A matrix of rows x cols is stored in two pieces of memory that the caller owns, so that kernels
// can read both in place and the ledger can count them apart:
//
//   payload  rows one after the other, row_bytes() each, without padding. f32: floats; f16, bf16:
//            16-bit patterns; integer kinds: packed_rows.h; mixed: per run of components, scale
//            and offset in f16, then its codes as an integer kind's.
//   scales   (integer kinds) per tile of unit_rows rows: groups() scales, then, if asymmetric,
//            groups() offsets; a group is unit_cols components. f16 or f32, aligned as such.
//
// Integer kinds, b bits, n = 2^(b-1), m = max |x| of the unit, codes v:
//
//   symmetric int8, int4   scale = m / (n - 1)   x^ = scale v           |v| <= n - 1
//   symmetric int3, int2   scale = m / n         x^ = scale (v + 1/2)   -n <= v < n
//   asymmetric             offset: about the middle of the range, the scale just so large that both
//                          ends are within reach    x^ = offset + scale v    -n <= v < n
//   q8_0, q4_0             llama_blocks.h
//
// Few levels do better without a zero among them: mean squared error on Gaussian groups of 32, with
// and without, int2 .432 and .126, int3 .051 and .032, int4 .0094 and .0079. int4 keeps its zero,
// which spares readers the offset.
//
// Scales are rounded to how they are stored, upwards, before anything is divided by them, so
// nothing is clipped and decoding is exact with respect to what is stored: |x - x^| <= scale / 2
// but for rounding in f32. x^ = fma(scale, v, offset), rounded once, on every level alike. A unit
// of zeros has scale 0 and decodes to zeros; a constant unit decodes to within scale / 2 like any
// other (asymmetric: to within rounding). Scales below the smallest positive f16 (2^-24), or the
// smallest normal f32, become that.
//
// Limits, reported as an Error that names row, column and value: NaN and infinities; a number whose
// f16 or bf16 is infinite; a unit whose scale or offset exceeds f16 (65504: choose scale=f32);
// magnitudes above 2^126 with integer codes. Nothing is written when encode fails.
//
// Threads: a Codec is immutable; calls on disjoint memory may run side by side. Nothing allocates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "codec/codec_spec.h"
#include "codec/kernels.h"
#include "kvspan/result.h"
#include "kvspan/tensor_view.h"

namespace kvspan {

// What each row lost by being stored, each [rows] or empty when not wanted. The bounds come from
// the actual residual and are never below it; they exceed it by less than 1e-5 of it (and 1e-21).
struct RowErrors {
  std::span<float> l2;    // >= |x - x^|_2
  std::span<float> linf;  // >= |x - x^|_inf
};

class Codec {
 public:
  // Uses the kernels of cpu_level() at this moment.
  static Result<Codec> create(const CodecSpec& spec, std::size_t cols);

  const CodecSpec& spec() const noexcept { return spec_; }
  std::size_t cols() const noexcept { return cols_; }
  std::size_t row_bytes() const noexcept { return row_bytes_; }
  std::size_t groups() const noexcept { return groups_; }
  std::size_t tile_scale_bytes() const noexcept { return tile_scale_bytes_; }
  // The tile of a row; a tile's scales start at tile * tile_scale_bytes().
  std::size_t tile_of(std::size_t row) const noexcept {
    return spec_.unit_rows == 0 ? 0 : row / spec_.unit_rows;
  }
  EncodedSize encoded_size(std::size_t rows) const noexcept {
    return kvspan::encoded_size(spec_, rows, cols_);
  }

  // Stores rows [n, cols]; payload and scales have exactly encoded_size(n) bytes. Rows of a tile
  // must come together: to append to what is stored, encode from a tile's first row, into the
  // memory at its offset.
  Status encode(TensorView<const float, 2> rows, std::span<std::byte> payload,
                std::span<std::byte> scales, RowErrors errors = {}) const;

  // Rows first_row .. first_row + out.shape[0] - 1 of what was stored, into out [n, cols].
  void decode(std::span<const std::byte> payload, std::span<const std::byte> scales,
              std::size_t first_row, TensorView<float, 2> out) const noexcept;
  // The codes of those rows (integer kinds).
  void decode_codes(std::span<const std::byte> payload, std::size_t first_row,
                    TensorView<std::int8_t, 2> out) const noexcept;
  // Scales and offsets of a tile as floats, [groups()] each, x^ = fma(scale, v, offset) for every
  // rule (integer kinds).
  void read_scales(std::span<const std::byte> scales, std::size_t tile, std::span<float> scale,
                   std::span<float> offset) const noexcept;

 private:
  struct Slab;
  using Rows = TensorView<const float, 2>;

  Codec(const CodecSpec& spec, std::size_t cols);
  Status check(const Rows& rows) const;
  Status check_scales(const Rows& rows) const;
  Error too_large(const Rows& rows, float limit, const char* what) const;
  void encode_floats(const Rows& rows, std::byte* payload, const RowErrors& errors) const noexcept;
  void write_scales(const Rows& tile, std::byte* scales) const noexcept;
  void encode_tile(const Rows& tile, std::byte* payload, std::byte* scales,
                   const RowErrors& errors) const noexcept;
  void encode_normal(const Rows& row, std::byte* payload, std::byte* scales,
                     const RowErrors& errors) const noexcept;
  void decode_normal(const std::byte* row, const std::byte* scale, float* out) const noexcept;
  void encode_mixed(const float* row, std::byte* payload, const RowErrors& errors,
                    std::size_t at) const noexcept;
  void decode_mixed(const std::byte* row, float* out) const noexcept;
  void encode_llama(const Rows& row, std::byte* payload, std::byte* scales,
                    const RowErrors& errors) const noexcept;
  void load_scales(const std::byte* tile_scales, std::size_t first_group, std::size_t count,
                   float* scale, float* offset) const noexcept;
  void load_slab(const std::byte* tile_scales, std::size_t at, std::size_t n,
                 Slab& slab) const noexcept;
  template <class Visit>
  void each_unit(const Rows& tile, Visit visit) const;

  CodecSpec spec_;
  std::size_t cols_ = 0;
  std::size_t row_bytes_ = 0;
  std::size_t groups_ = 0;
  std::size_t tile_scale_bytes_ = 0;
  const CodecKernels* kernels_ = nullptr;
  const PackKernels* pack_ = nullptr;  // of the integer kinds
};

}  // namespace kvspan
