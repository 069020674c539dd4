// SPDX-License-Identifier: Apache-2.0
#include "codec/codec.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

#include "base/expect.h"
#include "base/fail.h"
#include "codec/codec_slab.h"
#include "codec/normal_levels.h"
#include "codec/scale_choice.h"

namespace kvspan {
namespace {

const PackKernels* pack_kernels_of(const CodecKernels& kernels, CodecKind kind) {
  switch (kind) {
    case CodecKind::kInt8:
      return &kernels.int8;
    case CodecKind::kInt4:
      return &kernels.int4;
    case CodecKind::kInt3:
      return &kernels.int3;
    case CodecKind::kInt2:
      return &kernels.int2;
    default:
      return nullptr;
  }
}

}  // namespace

const PackKernels& mixed_pack_kernels(const CodecKernels& kernels, int bits) noexcept {
  return bits == 8 ? kernels.int8 : bits == 4 ? kernels.int4 : kernels.int2;
}

Result<Codec> Codec::create(const CodecSpec& spec, std::size_t cols) {
  KVSPAN_CHECK_OK(check_codec_spec(spec));
  if (cols == 0) return fail(ErrorCode::kInvalidArgument, "a codec needs at least one component");
  std::size_t in_runs = 0;
  for (const CodecRun& run : spec.runs) in_runs += run.cols;
  if (spec.kind == CodecKind::kMixed && in_runs != cols) {
    return fail(ErrorCode::kInvalidArgument, "runs of {} components for rows of {}", in_runs, cols);
  }
  return Codec(spec, cols);
}

Codec::Codec(const CodecSpec& spec, std::size_t cols)
    : spec_(spec), cols_(cols), kernels_(&codec_kernels(cpu_level())) {
  pack_ = pack_kernels_of(*kernels_, spec.kind);
  const EncodedSize one_row = kvspan::encoded_size(spec, 1, cols);
  row_bytes_ = one_row.payload_bytes;
  tile_scale_bytes_ = one_row.scale_bytes;
  if (is_integer(spec.kind)) {
    groups_ = spec.unit_cols == 0 ? 1 : (cols + spec.unit_cols - 1) / spec.unit_cols;
  }
}

void Codec::load_scales(const std::byte* tile_scales, std::size_t first_group, std::size_t count,
                        float* scale, float* offset) const noexcept {
  const auto load = [&](std::size_t at, float* out) {
    if (spec_.scale == ScaleType::kF32) {
      std::memcpy(out, tile_scales + 4 * at, 4 * count);
    } else {
      kernels_->f16_to_f32(reinterpret_cast<const Half*>(tile_scales) + at, count, out);
    }
  };
  load(first_group, scale);
  if (spec_.rule == ScaleRule::kAsymmetric) {
    load(groups_ + first_group, offset);
  } else {
    const float share = has_middle_levels(spec_) ? 0.5f : 0.0f;
    for (std::size_t i = 0; i < count; ++i) offset[i] = share * scale[i];
  }
}

void Codec::load_slab(const std::byte* tile_scales, std::size_t at, std::size_t n,
                      Slab& slab) const noexcept {
  const std::size_t width = spec_.unit_cols == 0 ? cols_ : spec_.unit_cols;
  const std::size_t first = at / width, last = (at + n - 1) / width;
  const std::size_t step = scales_per_chunk(spec_) ? kCodecChunk : 1;
  if (step == width) {
    load_scales(tile_scales, first, last - first + 1, slab.scale.data(), slab.offset.data());
    return;
  }
  if (first == last) {
    float scale = 0, offset = 0;
    load_scales(tile_scales, first, 1, &scale, &offset);
    std::fill_n(slab.scale.begin(), (n + step - 1) / step, scale);
    std::fill_n(slab.offset.begin(), (n + step - 1) / step, offset);
    return;
  }
  std::array<float, kSlab> scale, offset;
  load_scales(tile_scales, first, last - first + 1, scale.data(), offset.data());
  std::size_t group = 0, next = (first + 1) * width - at;  // where the following group starts
  for (std::size_t i = 0, c = 0; c < n; ++i, c += step) {
    if (c == next) ++group, next += width;
    slab.scale[i] = scale[group];
    slab.offset[i] = offset[group];
  }
}

void Codec::read_scales(std::span<const std::byte> scales, std::size_t tile, std::span<float> scale,
                        std::span<float> offset) const noexcept {
  KVSPAN_EXPECT(is_integer(spec_.kind), "only integer kinds have scales");
  KVSPAN_EXPECT(scales.size() >= (tile + 1) * tile_scale_bytes_, "tile within the scales");
  KVSPAN_EXPECT(aligned_for(spec_, nullptr, scales.data()), "memory aligned to its numbers");
  KVSPAN_EXPECT(scale.size() == groups_ && offset.size() == groups_, "one of each per group");
  load_scales(scales.data() + tile * tile_scale_bytes_, 0, groups_, scale.data(), offset.data());
}

void Codec::decode(std::span<const std::byte> payload, std::span<const std::byte> scales,
                   std::size_t first_row, TensorView<float, 2> out) const noexcept {
  const std::size_t count = out.shape[0];
  KVSPAN_EXPECT(out.shape[1] == cols_, "rows of the codec's width");
  if (count == 0) return;
  KVSPAN_EXPECT(payload.size() >= (first_row + count) * row_bytes_, "rows within the payload");
  KVSPAN_EXPECT(aligned_for(spec_, payload.data(), scales.data()), "memory aligned to its numbers");
  const std::byte* in = payload.data() + first_row * row_bytes_;
  if (!is_integer(spec_.kind)) {
    for (std::size_t r = 0; r < count; ++r, in += row_bytes_) {
      switch (spec_.kind) {
        case CodecKind::kF32:
          std::memcpy(out.row(r), in, row_bytes_);
          break;
        case CodecKind::kF16:
          kernels_->f16_to_f32(reinterpret_cast<const Half*>(in), cols_, out.row(r));
          break;
        case CodecKind::kMixed:
          decode_mixed(in, out.row(r));
          break;
        default:
          kernels_->bf16_to_f32(reinterpret_cast<const BFloat16*>(in), cols_, out.row(r));
      }
    }
    return;
  }
  KVSPAN_EXPECT(scales.size() >= (tile_of(first_row + count - 1) + 1) * tile_scale_bytes_,
                "tiles within the scales");
  if (spec_.rule == ScaleRule::kNormal) {
    for (std::size_t r = 0; r < count; ++r, in += row_bytes_) {
      decode_normal(in, scales.data() + (first_row + r) * tile_scale_bytes_, out.row(r));
    }
    return;
  }
  const int bits = bits_of(spec_.kind);
  const auto decode = scales_per_chunk(spec_) ? pack_->decode_chunks : pack_->decode_columns;
  Slab slab;
  for (std::size_t done = 0; done < count;) {
    const std::size_t tile = tile_of(first_row + done);
    const std::size_t end =
        spec_.unit_rows == 0 ? count : std::min(count, (tile + 1) * spec_.unit_rows - first_row);
    for (std::size_t at = 0; at < cols_; at += kSlab) {
      const std::size_t n = std::min(kSlab, cols_ - at);
      load_slab(scales.data() + tile * tile_scale_bytes_, at, n, slab);
      for (std::size_t r = done; r < end; ++r) {
        const auto* row = reinterpret_cast<const std::uint8_t*>(in) + r * row_bytes_;
        decode(row + packed_bytes(bits, at), n, slab.scale.data(), slab.offset.data(),
               out.row(r) + at);
      }
    }
    done = end;
  }
}

void Codec::decode_normal(const std::byte* row, const std::byte* scale, float* out) const noexcept {
  const int bits = bits_of(spec_.kind);
  const float* levels = normal_levels(bits).data() + (1 << (bits - 1));
  float factor = 0.0f, unused = 0.0f;
  load_scales(scale, 0, 1, &factor, &unused);
  std::array<std::int8_t, kSlab> codes;
  for (std::size_t at = 0; at < cols_; at += kSlab) {
    const std::size_t n = std::min(kSlab, cols_ - at);
    pack_->unpack(reinterpret_cast<const std::uint8_t*>(row) + packed_bytes(bits, at), n,
                  codes.data());
    for (std::size_t i = 0; i < n; ++i) out[at + i] = factor * levels[codes[i]];
  }
}

void Codec::decode_mixed(const std::byte* row, float* out) const noexcept {
  for (const CodecRun& run : spec_.runs) {
    if (run.bits == 0) {
      std::fill_n(out, run.cols, 0.0f);
      out += run.cols;
      continue;
    }
    std::array<Half, 2> halves;
    std::memcpy(halves.data(), row, sizeof(halves));
    const float scale = to_float(halves[0]), offset = to_float(halves[1]);
    const PackKernels& pack = mixed_pack_kernels(*kernels_, run.bits);
    const auto* packed = reinterpret_cast<const std::uint8_t*>(row + sizeof(halves));
    for (std::size_t at = 0; at < run.cols; at += kCodecChunk) {
      const std::size_t n = std::min(kCodecChunk, run.cols - at);
      pack.decode_chunks(packed + packed_bytes(run.bits, at), n, &scale, &offset, out + at);
    }
    row += mixed_run_bytes(run);
    out += run.cols;
  }
}

void Codec::decode_codes(std::span<const std::byte> payload, std::size_t first_row,
                         TensorView<std::int8_t, 2> out) const noexcept {
  KVSPAN_EXPECT(is_integer(spec_.kind), "only integer kinds have codes");
  KVSPAN_EXPECT(out.shape[1] == cols_, "rows of the codec's width");
  KVSPAN_EXPECT(payload.size() >= (first_row + out.shape[0]) * row_bytes_,
                "rows within the payload");
  const auto* in = reinterpret_cast<const std::uint8_t*>(payload.data()) + first_row * row_bytes_;
  for (std::size_t r = 0; r < out.shape[0]; ++r, in += row_bytes_) {
    pack_->unpack(in, cols_, out.row(r));
  }
}

}  // namespace kvspan
