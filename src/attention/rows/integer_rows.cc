// SPDX-License-Identifier: Apache-2.0
#include "attention/rows/integer_rows.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "codec/kernels.h"

namespace kvspan::detail {

namespace {

// [n][G] into [G] rows of n, `stride` apart; G a constant becomes vector code.
template <std::size_t G>
void spread(const float* rows, std::size_t n, std::size_t stride, float* to) {
  for (std::size_t t = 0; t < n; ++t) {
    for (std::size_t g = 0; g < G; ++g) to[g * stride + t] = rows[t * G + g];
  }
}

}  // namespace

IntegerLayout integer_layout(const Code& code) noexcept {
  const CodecSpec& spec = code.codec().spec();
  IntegerLayout layout;
  if (!is_integer(spec.kind) || spec.rule == ScaleRule::kNormal) return layout;
  layout.width = padded_dim(code.rank());
  const auto unit = static_cast<std::int64_t>(spec.unit_cols);
  const bool whole = unit == 0 || unit >= code.rank();
  layout.usable = whole || unit % kRowMultiple == 0;
  layout.group = whole ? layout.width : static_cast<std::int32_t>(unit);
  layout.groups = (layout.width + layout.group - 1) / layout.group;
  layout.packed = spec.kind != CodecKind::kInt8 || code.rank() % kRowMultiple != 0;
  layout.offsets = spec.rule == ScaleRule::kAsymmetric || spec.kind == CodecKind::kInt3 ||
                   spec.kind == CodecKind::kInt2;
  return layout;
}

void load_scales(const CodedSide::Part& part, const IntegerLayout& layout, std::int32_t first,
                 std::int32_t n, std::int32_t stride, float* scale, float* offset,
                 float* work) noexcept {
  const Codec& codec = part.code->codec();
  const std::span<const std::byte> stored{part.scales.data(), part.size.scale_bytes};
  const auto groups = static_cast<std::size_t>(layout.groups);
  const CodecSpec& spec = codec.spec();
  if (spec.unit_rows == 1 && !layout.offsets) {
    const std::byte* from =
        stored.data() + static_cast<std::size_t>(first) * codec.tile_scale_bytes();
    const std::size_t count = static_cast<std::size_t>(n) * groups;
    float* const rows = groups == 1 ? scale : work;
    if (spec.scale == ScaleType::kF32) {
      std::memcpy(rows, from, count * sizeof(float));
    } else {
      codec_kernels(cpu_level()).f16_to_f32(reinterpret_cast<const Half*>(from), count, rows);
    }
    const auto tokens = static_cast<std::size_t>(n), step = static_cast<std::size_t>(stride);
    if (groups == 2) {
      spread<2>(rows, tokens, step, scale);
    } else if (groups == 4) {
      spread<4>(rows, tokens, step, scale);
    } else if (groups > 1) {
      for (std::size_t g = 0; g < groups; ++g) {
        for (std::size_t t = 0; t < tokens; ++t) scale[g * step + t] = rows[t * groups + g];
      }
    }
    return;
  }
  for (std::int32_t t = 0; t < n;) {
    const std::size_t tile = codec.tile_of(static_cast<std::size_t>(first + t));
    std::int32_t end = n;
    if (spec.unit_rows != 0) {
      end = std::min(n, static_cast<std::int32_t>((tile + 1) * spec.unit_rows) - first);
    }
    codec.read_scales(stored, tile, {work, groups}, {work + groups, groups});
    for (std::size_t g = 0; g < groups; ++g) {
      float* to = scale + g * static_cast<std::size_t>(stride);
      std::fill(to + t, to + end, work[g]);
      if (!layout.offsets) continue;
      to = offset + g * static_cast<std::size_t>(stride);
      std::fill(to + t, to + end, work[groups + g]);
    }
    t = end;
  }
}

const std::int8_t* load_codes(const CodedSide::Part& part, const IntegerLayout& layout,
                              std::int32_t first, std::int32_t n, std::int8_t* to) noexcept {
  const Codec& codec = part.code->codec();
  if (!layout.packed) {
    return reinterpret_cast<const std::int8_t*>(part.payload.data()) +
           static_cast<std::size_t>(first) * codec.row_bytes();
  }
  const auto rows = static_cast<std::size_t>(n), width = static_cast<std::size_t>(layout.width);
  for (std::size_t t = 0; width != codec.cols() && t < rows; ++t) {
    std::fill(to + t * width + codec.cols(), to + (t + 1) * width, std::int8_t{0});
  }
  codec.decode_codes({part.payload.data(), part.size.payload_bytes},
                     static_cast<std::size_t>(first), {to, {rows, codec.cols()}, {width, 1}});
  return to;
}

void round_query(const float* q, const IntegerLayout& layout, std::int32_t stride,
                 std::int16_t* numbers, float* scale, float* sum) noexcept {
  for (std::int32_t g = 0; g < layout.groups; ++g) {
    const std::int32_t from = g * layout.group, to = std::min(layout.width, from + layout.group);
    float largest = 0.0f, total = 0.0f;
    for (std::int32_t i = from; i < to; ++i) {
      largest = std::max(largest, std::abs(q[i]));
      total += q[i];
    }
    // Adding 1.5 * 2^23 leaves the nearest integer in the low bits.
    constexpr float kMagic = 12582912.0f;
    const float inverse = largest > 0x1p-110f ? static_cast<float>(kQueryLimit) / largest : 0.0f;
    for (std::int32_t i = from; i < to; ++i) {
      const auto bits = std::bit_cast<std::uint32_t>(q[i] * inverse + kMagic);
      numbers[i] = static_cast<std::int16_t>(bits & 0xffffu);
    }
    scale[g * stride] = inverse == 0.0f ? 0.0f : largest / static_cast<float>(kQueryLimit);
    sum[g * stride] = total;
  }
}

}  // namespace kvspan::detail
