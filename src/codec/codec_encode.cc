// SPDX-License-Identifier: Apache-2.0
// Codec::encode: checks everything, then writes.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/expect.h"
#include "base/fail.h"
#include "codec/codec_slab.h"
#include "codec/llama_blocks.h"
#include "codec/normal_levels.h"
#include "codec/scale_choice.h"

namespace kvspan {
namespace {

// Rows of a tile that share one expansion of its scales.
constexpr std::size_t kRowBlock = 16;

RowErrors rows_of(const RowErrors& all, std::size_t first, std::size_t count) {
  return {all.l2.empty() ? all.l2 : all.l2.subspan(first, count),
          all.linf.empty() ? all.linf : all.linf.subspan(first, count)};
}

bool wanted(const RowErrors& errors) {
  return !errors.l2.empty() || !errors.linf.empty();
}

void add_residual(const CodecKernels& kernels, const float* x, const float* y, std::size_t n,
                  Residual& sum) {
  Residual part;
  kernels.residual(x, y, n, &part);
  if (!std::isfinite(part.squares)) {  // f32 squares overflowed: the reference sums in f64
    part = {};
    detail::kCodecKernelsRef.residual(x, y, n, &part);
  }
  sum.squares += part.squares;
  sum.largest = std::max(sum.largest, part.largest);
}

// Turns a residual into bounds that hold whatever was rounded on the way (see kernels.h).
void write_errors(const Residual& r, std::size_t cols, const RowErrors& errors, std::size_t row) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  if (!errors.l2.empty()) {
    const double squares = r.squares * (1 + 0x1p-18) + static_cast<double>(cols) * 0x1p-147;
    // The cast rounds by half a float's step at most, the next float up covers that.
    const float bound = std::nextafter(static_cast<float>(std::sqrt(squares)), kInfinity);
    errors.l2[row] = r.largest == 0.0f ? 0.0f : bound;
  }
  if (!errors.linf.empty()) {
    errors.linf[row] = r.largest == 0.0f ? 0.0f : std::nextafter(r.largest, kInfinity);
  }
}

}  // namespace

// Calls visit(group, low, high) for every unit of a tile.
template <class Visit>
void Codec::each_unit(const Rows& tile, Visit visit) const {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::size_t width = spec_.unit_cols == 0 ? cols_ : spec_.unit_cols;
  if (width >= kCodecChunk) {
    for (std::size_t group = 0; group < groups_; ++group) {
      const std::size_t at = group * width, n = std::min(width, cols_ - at);
      float low = kInfinity, high = -kInfinity;
      for (std::size_t r = 0; r < tile.shape[0]; ++r) {
        kernels_->widen_range(tile.row(r) + at, n, &low, &high);
      }
      visit(group, low, high);
    }
    return;
  }
  // Narrow units: ranges of single components first, as many whole units as fit a slab.
  const std::size_t step = kSlab / width * width;
  std::array<float, kSlab> low, high;
  for (std::size_t at = 0; at < cols_; at += step) {
    const std::size_t n = std::min(step, cols_ - at);
    low.fill(kInfinity);
    high.fill(-kInfinity);
    for (std::size_t r = 0; r < tile.shape[0]; ++r) {
      kernels_->widen_columns(tile.row(r) + at, n, low.data(), high.data());
    }
    for (std::size_t i = 0; i < n; i += width) {
      const std::size_t end = std::min(i + width, n);
      visit((at + i) / width, *std::min_element(low.begin() + i, low.begin() + end),
            *std::max_element(high.begin() + i, high.begin() + end));
    }
  }
}

Error Codec::too_large(const Rows& rows, float limit, const char* what) const {
  for (std::size_t r = 0; r < rows.shape[0]; ++r) {
    for (std::size_t c = 0; c < cols_; ++c) {
      const float x = rows.row(r)[c];
      if (!(std::fabs(x) <= limit)) {
        return fail(ErrorCode::kInvalidArgument, "row {}, column {}: {} {}", r, c, x, what);
      }
    }
  }
  return fail(ErrorCode::kInvalidArgument, "a number {}", what);
}

Status Codec::check(const Rows& rows) const {
  std::uint32_t bits = 0;
  for (std::size_t r = 0; r < rows.shape[0]; ++r) {
    bits = std::max(bits, kernels_->max_magnitude(rows.row(r), cols_));
  }
  const float most = std::bit_cast<float>(bits);
  if (!std::isfinite(most)) {
    return too_large(rows, std::numeric_limits<float>::max(), "is not finite");
  }
  switch (spec_.kind) {
    case CodecKind::kF32:
      return {};
    case CodecKind::kF16:
      // 65520 is the first to round to infinity.
      if (most >= 65520.0f) return too_large(rows, std::nextafter(65520.0f, 0.0f), "exceeds f16");
      return {};
    case CodecKind::kBf16:
      if (!std::isfinite(to_float(to_bfloat16(most)))) {
        return too_large(rows, std::nextafter(0x1.ffp127f, 0.0f), "exceeds bf16");
      }
      return {};
    case CodecKind::kMixed:
      if (most > kHalfMax)
        return too_large(rows, kHalfMax, "exceeds f16, which offsets are stored as");
      return {};
    default:
      break;
  }
  if (most > 0x1p126f)
    return too_large(rows, 0x1p126f, "exceeds 2^126, the limit of integer codes");
  // No scale or offset is larger than the largest number of its unit.
  if (spec_.scale == ScaleType::kF16 && most > kHalfMax) return check_scales(rows);
  return {};
}

Status Codec::check_scales(const Rows& rows) const {
  const std::size_t tile_rows = spec_.unit_rows == 0 ? rows.shape[0] : spec_.unit_rows;
  for (std::size_t first = 0; first < rows.shape[0]; first += tile_rows) {
    const std::size_t count = std::min(tile_rows, rows.shape[0] - first);
    Status status;
    each_unit(rows_of(rows, first, count), [&](std::size_t group, float low, float high) {
      const StoredScale s = choose_scale(spec_, low, high);
      if (s.fits || !status) return;
      status = fail(ErrorCode::kInvalidArgument,
                    "rows {}..{}, from column {}: numbers from {} to {} need a scale or offset "
                    "beyond f16's 65504; scale=f32 holds them",
                    first, first + count - 1, group * static_cast<std::size_t>(spec_.unit_cols),
                    low, high);
    });
    KVSPAN_CHECK_OK(status);
  }
  return {};
}

void Codec::write_scales(const Rows& tile, std::byte* scales) const noexcept {
  each_unit(tile, [&](std::size_t group, float low, float high) {
    const StoredScale s = choose_scale(spec_, low, high);
    if (spec_.scale == ScaleType::kF32) {
      auto* out = reinterpret_cast<float*>(scales);
      out[group] = s.scale;
      if (spec_.rule == ScaleRule::kAsymmetric) out[groups_ + group] = s.offset;
    } else {
      auto* out = reinterpret_cast<Half*>(scales);
      out[group] = to_half(s.scale);
      if (spec_.rule == ScaleRule::kAsymmetric) out[groups_ + group] = to_half(s.offset);
    }
  });
}

void Codec::encode_floats(const Rows& rows, std::byte* payload,
                          const RowErrors& errors) const noexcept {
  std::array<float, kSlab> back;
  for (std::size_t r = 0; r < rows.shape[0]; ++r, payload += row_bytes_) {
    const float* x = rows.row(r);
    Residual sum;
    if (spec_.kind == CodecKind::kF32) {
      std::memcpy(payload, x, row_bytes_);
    } else {
      for (std::size_t at = 0; at < cols_; at += kSlab) {
        const std::size_t n = std::min(kSlab, cols_ - at);
        if (spec_.kind == CodecKind::kF16) {
          auto* out = reinterpret_cast<Half*>(payload) + at;
          kernels_->f32_to_f16(x + at, n, out);
          if (wanted(errors)) kernels_->f16_to_f32(out, n, back.data());
        } else {
          auto* out = reinterpret_cast<BFloat16*>(payload) + at;
          kernels_->f32_to_bf16(x + at, n, out);
          if (wanted(errors)) kernels_->bf16_to_f32(out, n, back.data());
        }
        if (wanted(errors)) add_residual(*kernels_, x + at, back.data(), n, sum);
      }
    }
    write_errors(sum, cols_, errors, r);
  }
}

void Codec::encode_tile(const Rows& tile, std::byte* payload, std::byte* scales,
                        const RowErrors& errors) const noexcept {
  const int bits = bits_of(spec_.kind);
  const auto [lowest, highest] = code_range(spec_);
  const bool chunks = scales_per_chunk(spec_);
  const auto quantize = chunks ? kernels_->quantize_chunks : kernels_->quantize_columns;
  const auto decode = chunks ? kernels_->int8.decode_chunks : kernels_->int8.decode_columns;
  Slab slab;
  std::array<std::int8_t, kSlab> codes;
  std::array<float, kSlab> back;
  for (std::size_t first = 0; first < tile.shape[0]; first += kRowBlock) {
    const std::size_t count = std::min(kRowBlock, tile.shape[0] - first);
    std::array<Residual, kRowBlock> sums{};
    for (std::size_t at = 0; at < cols_; at += kSlab) {
      const std::size_t n = std::min(kSlab, cols_ - at);
      load_slab(scales, at, n, slab);
      const std::size_t distinct = chunks ? (n + kCodecChunk - 1) / kCodecChunk : n;
      for (std::size_t i = 0; i < distinct; ++i) {
        slab.inverse[i] = slab.scale[i] > 0.0f ? 1.0f / slab.scale[i] : 0.0f;
      }
      for (std::size_t r = 0; r < count; ++r) {
        const float* x = tile.row(first + r) + at;
        quantize(x, n, slab.inverse.data(), slab.offset.data(), lowest, highest, codes.data());
        auto* out = reinterpret_cast<std::uint8_t*>(payload) + (first + r) * row_bytes_;
        pack_->pack(codes.data(), n, out + packed_bytes(bits, at));
        if (wanted(errors)) {
          decode(reinterpret_cast<const std::uint8_t*>(codes.data()), n, slab.scale.data(),
                 slab.offset.data(), back.data());
          add_residual(*kernels_, x, back.data(), n, sums[r]);
        }
      }
    }
    for (std::size_t r = 0; r < count; ++r) write_errors(sums[r], cols_, errors, first + r);
  }
}

// Row `at` of those that are encoded. Each run as an asymmetric integer kind of its bits has it.
void Codec::encode_mixed(const float* row, std::byte* payload, const RowErrors& errors,
                         std::size_t at) const noexcept {
  Residual sum;
  std::array<float, kCodecChunk> back{};
  std::array<std::int8_t, kCodecChunk> codes;
  for (const CodecRun& run : spec_.runs) {
    float scale = 0.0f, offset = 0.0f, inverse = 0.0f;
    CodecSpec alone;
    if (run.bits > 0) {
      alone.kind = run.bits == 8   ? CodecKind::kInt8
                   : run.bits == 4 ? CodecKind::kInt4
                                   : CodecKind::kInt2;
      alone.rule = ScaleRule::kAsymmetric;
      const auto [low, high] = std::minmax_element(row, row + run.cols);
      const StoredScale stored = choose_scale(alone, *low, *high);
      scale = stored.scale;
      offset = stored.offset;
      inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
      const std::array<Half, 2> halves{to_half(scale), to_half(offset)};
      std::memcpy(payload, halves.data(), sizeof(halves));
    }
    const auto [lowest, highest] = code_range(alone);
    auto* packed = reinterpret_cast<std::uint8_t*>(payload + 2 * sizeof(Half));
    for (std::size_t first = 0; first < run.cols; first += kCodecChunk) {
      const std::size_t n = std::min(kCodecChunk, run.cols - first);
      if (run.bits == 0) {
        back.fill(0.0f);
      } else {
        kernels_->quantize_chunks(row + first, n, &inverse, &offset, lowest, highest, codes.data());
        mixed_pack_kernels(*kernels_, run.bits)
            .pack(codes.data(), n, packed + packed_bytes(run.bits, first));
        kernels_->int8.decode_chunks(reinterpret_cast<const std::uint8_t*>(codes.data()), n, &scale,
                                     &offset, back.data());
      }
      if (wanted(errors)) add_residual(*kernels_, row + first, back.data(), n, sum);
    }
    payload += mixed_run_bytes(run);
    row += run.cols;
  }
  write_errors(sum, cols_, errors, at);
}

// The scale keeps the row's length; each number then gets the nearest level.
void Codec::encode_normal(const Rows& row, std::byte* payload, std::byte* scales,
                          const RowErrors& errors) const noexcept {
  const int bits = bits_of(spec_.kind);
  const std::span<const float> levels = normal_levels(bits);
  const float* x = row.row(0);
  double square = 0.0;
  for (std::size_t i = 0; i < cols_; ++i) square += double{x[i]} * double{x[i]};
  auto scale = static_cast<float>(std::sqrt(square / static_cast<double>(cols_)));
  if (spec_.scale == ScaleType::kF16) {
    const Half half = to_half(scale);
    std::memcpy(scales, &half, sizeof(half));
    scale = to_float(half);
  } else {
    std::memcpy(scales, &scale, sizeof(scale));
  }
  std::array<std::int8_t, kSlab> codes;
  std::array<float, kSlab> back;
  Residual sum;
  for (std::size_t at = 0; at < cols_; at += kSlab) {
    const std::size_t n = std::min(kSlab, cols_ - at);
    for (std::size_t i = 0; i < n; ++i) {
      std::size_t level = 0;
      while (level + 1 < levels.size() &&
             x[at + i] > scale * 0.5f * (levels[level] + levels[level + 1])) {
        ++level;
      }
      codes[i] = static_cast<std::int8_t>(static_cast<int>(level) - (1 << (bits - 1)));
    }
    pack_->pack(codes.data(), n, reinterpret_cast<std::uint8_t*>(payload) + packed_bytes(bits, at));
    for (std::size_t i = 0; i < n; ++i) {
      back[i] = scale * levels[static_cast<std::size_t>(codes[i] + (1 << (bits - 1)))];
    }
    add_residual(*kernels_, x + at, back.data(), n, sum);
  }
  write_errors(sum, cols_, errors, 0);
}

void Codec::encode_llama(const Rows& row, std::byte* payload, std::byte* scales,
                         const RowErrors& errors) const noexcept {
  const auto quantize = spec_.kind == CodecKind::kInt8 ? quantize_q8_0 : quantize_q4_0;
  const int bits = bits_of(spec_.kind);
  auto* out = reinterpret_cast<std::uint8_t*>(payload);
  auto* halves = reinterpret_cast<Half*>(scales);
  std::array<std::int8_t, kCodecChunk> codes;
  std::array<float, kCodecChunk> back;
  Residual sum;
  for (std::size_t at = 0; at < cols_; at += kCodecChunk, ++halves) {
    const float* x = row.row(0) + at;
    const std::size_t n = std::min(kCodecChunk, cols_ - at);
    *halves = quantize(x, n, codes.data());
    pack_->pack(codes.data(), n, out + packed_bytes(bits, at));
    if (!wanted(errors)) continue;
    const float scale = to_float(*halves), offset = 0.0f;
    kernels_->int8.decode_chunks(reinterpret_cast<const std::uint8_t*>(codes.data()), n, &scale,
                                 &offset, back.data());
    add_residual(*kernels_, x, back.data(), n, sum);
  }
  write_errors(sum, cols_, errors, 0);
}

Status Codec::encode(TensorView<const float, 2> rows, std::span<std::byte> payload,
                     std::span<std::byte> scales, RowErrors errors) const {
  const std::size_t count = rows.shape[0];
  KVSPAN_EXPECT(rows.shape[1] == cols_, "rows of the codec's width");
  KVSPAN_EXPECT((EncodedSize{payload.size(), scales.size()} == encoded_size(count)),
                "memory of exactly the encoded size");
  KVSPAN_EXPECT(aligned_for(spec_, payload.data(), scales.data()), "memory aligned to its numbers");
  KVSPAN_EXPECT(errors.l2.empty() || errors.l2.size() == count, "one error per row");
  KVSPAN_EXPECT(errors.linf.empty() || errors.linf.size() == count, "one error per row");
  if (count == 0) return {};
  KVSPAN_CHECK_OK(check(rows));
  if (spec_.kind == CodecKind::kMixed) {
    for (std::size_t r = 0; r < count; ++r) {
      encode_mixed(rows.row(r), payload.data() + r * row_bytes_, errors, r);
    }
    return {};
  }
  if (!is_integer(spec_.kind)) {
    encode_floats(rows, payload.data(), errors);
    return {};
  }
  const std::size_t tile_rows = spec_.unit_rows == 0 ? count : spec_.unit_rows;
  std::byte* tile_scales = scales.data();
  for (std::size_t first = 0; first < count; first += tile_rows, tile_scales += tile_scale_bytes_) {
    const std::size_t n = std::min(tile_rows, count - first);
    const Rows tile = rows_of(rows, first, n);
    std::byte* out = payload.data() + first * row_bytes_;
    if (spec_.rule == ScaleRule::kNormal) {
      encode_normal(tile, out, tile_scales, rows_of(errors, first, n));
    } else if (spec_.rule == ScaleRule::kLlama) {
      encode_llama(tile, out, tile_scales, rows_of(errors, first, n));
    } else {
      write_scales(tile, tile_scales);
      encode_tile(tile, out, tile_scales, rows_of(errors, first, n));
    }
  }
  return {};
}

}  // namespace kvspan
