// SPDX-License-Identifier: Apache-2.0
#include "attention/bands/rounded_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace kvspan {

RoundedRows::Side::Side(std::int32_t heads, std::int32_t width, std::int32_t parts, std::int32_t count)
    : dim(width), digits(parts), rows((count + kTile - 1) / kTile * kTile) {
  const auto all = static_cast<std::size_t>(heads) * static_cast<std::size_t>(rows);
  numbers = Buffer(all * static_cast<std::size_t>(dim * digits) + kBandsBytesAfter, MemoryKind::kFullRank, nullptr);
  scales = Buffer(all * sizeof(float), MemoryKind::kFullRank, nullptr);
  std::fill_n(scales.as<float>(), all, 0.0f);
}

RoundedRows::RoundedRows(std::int32_t heads, std::int32_t key_dim, std::int32_t value_dim, std::int32_t rows, bool fine)
    : key_(heads, padded_dim(key_dim), kKeyDigits, rows),
      value_(heads, padded_dim(value_dim), value_digits(fine), rows) {
  const std::int32_t quads = key_.dim / 4;
  const bool small = key_.dim * 127 * 127 < 1 << 22;
  if (fine) ranges_.push_back({0, quads, small, true});
  for (std::int32_t digit = 0; digit < kKeyDigits; ++digit) ranges_.push_back({digit * quads, quads, small});
}

void RoundedRows::Side::put(std::int32_t head, std::int32_t row, const float* from) noexcept {
  const BandsAttentionKernels& kernels = bands_attention_kernels(cpu_level());
  alignas(64) std::int8_t rounded[kMostDim], rest[kMostDim];
  float sum = 0.0f;
  const float most = kernels.round(from, dim, rounded, &sum);
  scales.as<float>()[scale_at(head, row)] = most / 127.0f;
  std::int8_t* to = numbers.as<std::int8_t>() + tile_at(head, row / kTile) + row % kTile * 4;
  if (digits > 1) round_rest(from, dim, most, rounded, rest);
  for (const std::int8_t* const digit : {rounded, rest}) {
    if (digit == rest && digits == 1) break;
    for (std::int32_t i = 0; i < dim; i += 4, to += 4 * kTile) std::memcpy(to, digit + i, 4);
  }
}

void RoundedRows::put_key(std::int32_t head, std::int32_t row, float* numbers) noexcept {
  key_.put(head, row, numbers);
}

void RoundedRows::put_value(std::int32_t head, std::int32_t row, float* numbers) noexcept {
  value_.put(head, row, numbers);
}

void RoundedRows::round_query(const float* numbers, std::int8_t* to, float* scales) const noexcept {
  const BandsAttentionKernels& kernels = bands_attention_kernels(cpu_level());
  const std::int32_t bytes = query_bytes(ranges_.front());
  std::int8_t* const first = fine() ? to + bytes : to;
  float* const scale = fine() ? scales + 1 : scales;
  float sum = 0.0f;
  const float most = kernels.round(numbers, key_.dim, first, &sum);
  *scale = most / 127.0f;
  std::fill(first + key_.dim, first + bytes, std::int8_t{0});
  // The same digit meets the second one of keys.
  std::copy_n(first, bytes, first + bytes);
  scale[1] = *scale / kDigitBase;
  if (!fine()) return;
  // What it has left meets the first.
  round_rest(numbers, key_.dim, most, first, to);
  std::fill(to + key_.dim, first, std::int8_t{0});
  *scales = scale[1];
}

}  // namespace kvspan
