// SPDX-License-Identifier: Apache-2.0
// Full-rank rows in tiles of 16 tokens as the integer products of bands read codes, one scale for each row and head:
// values in one digit of 8 bits, keys in two, or all in two.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "attention/bands/kernels/bands_kernels.h"
#include "attention/bands/rebuilt_sink.h"
#include "base/memory.h"
#include "cache/segments/segment.h"

namespace kvspan {

class RoundedRows final : public RebuiltSink {
 public:
  static constexpr std::int32_t kTile = 16;
  static constexpr std::int32_t kMostDim = 1024;
  // Digits of keys and values, and products of digits that a number of a query and one of a key take. Rows are `fine`
  // where a BandsCode is: then values and queries have a second digit too.
  static constexpr std::int32_t kKeyDigits = 2;
  static constexpr std::int32_t value_digits(bool fine) noexcept { return fine ? 2 : 1; }
  static constexpr std::int32_t key_products(bool fine) noexcept { return fine ? 3 : 2; }

  // Room for rows of `heads` heads. Throws std::bad_alloc.
  RoundedRows(std::int32_t heads, std::int32_t key_dim, std::int32_t value_dim, std::int32_t rows, bool fine);

  void put_key(std::int32_t head, std::int32_t row, float* numbers) noexcept override;
  void put_value(std::int32_t head, std::int32_t row, float* numbers) noexcept override;

  std::int32_t key_dim() const noexcept { return key_.dim; }      // padded
  std::int32_t value_dim() const noexcept { return value_.dim; }  // padded
  bool fine() const noexcept { return value_.digits > 1; }
  // Numbers of all digits of a value, one digit after the other.
  std::int32_t value_numbers() const noexcept { return value_.dim * value_.digits; }
  // Tiles from one on, and the scales of rows from one on. Those of rows that nobody has put are finite.
  const std::int8_t* key_tiles(std::int32_t head, std::int32_t tile) const noexcept {
    return key_.numbers.as<std::int8_t>() + key_.tile_at(head, tile);
  }
  const std::int8_t* value_tiles(std::int32_t head, std::int32_t tile) const noexcept {
    return value_.numbers.as<std::int8_t>() + value_.tile_at(head, tile);
  }
  const float* key_scales(std::int32_t head, std::int32_t row) const noexcept {
    return key_.scales.as<float>() + key_.scale_at(head, row);
  }
  const float* value_scales(std::int32_t head, std::int32_t row) const noexcept {
    return value_.scales.as<float>() + value_.scale_at(head, row);
  }

  // A query for BandsAttentionKernels::score: its digits, of query_stride(key_ranges()) bytes, and their scales.
  std::span<const BandsCode::ScaleRange> key_ranges() const noexcept { return ranges_; }
  void round_query(const float* numbers, std::int8_t* to, float* scales) const noexcept;

  std::size_t bytes() const noexcept { return key_.bytes() + value_.bytes(); }

 private:
  struct Side {
    std::int32_t dim = 0, digits = 0, rows = 0;
    Buffer numbers, scales;

    Side(std::int32_t heads, std::int32_t width, std::int32_t parts, std::int32_t count);
    std::ptrdiff_t tile_at(std::int32_t head, std::int32_t index) const noexcept {
      return (static_cast<std::ptrdiff_t>(head) * (rows / kTile) + index) * kTile * dim * digits;
    }
    std::ptrdiff_t scale_at(std::int32_t head, std::int32_t row) const noexcept {
      return static_cast<std::ptrdiff_t>(head) * rows + row;
    }
    void put(std::int32_t head, std::int32_t row, const float* from) noexcept;
    std::size_t bytes() const noexcept { return numbers.bytes() + scales.bytes(); }
  };

  Side key_, value_;
  std::vector<BandsCode::ScaleRange> ranges_;
};

}  // namespace kvspan
