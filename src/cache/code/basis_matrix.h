// SPDX-License-Identifier: Apache-2.0
// The basis of a code as it is stored: [rows, cols], one direction a column, in f32, in f16, or in
// int8 with one scale for each direction. Products decode a row at a time.
//   f16   entries off by at most 2^-11 of themselves, so |B'B - I|_max <= 2^-10
//   int8  a direction is n / |n| with whole numbers n up to 127: its length stays 1, its numbers
//         are off by at most about 1/254 of its largest
// The identity, which codes without a rotation have, is not multiplied by.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/memory.h"

namespace kvspan {

enum class BasisStore : std::uint8_t { kF32, kF16, kInt8 };

class BasisMatrix {
 public:
  BasisMatrix() = default;
  // numbers [rows, cols]. `scales` [cols] of int8 numbers that were stored before; empty: made.
  BasisMatrix(BasisStore store, std::size_t rows, std::size_t cols, const float* numbers,
              std::span<const float> scales, MemoryKind kind,
              const std::shared_ptr<Ledger>& ledger);

  bool empty() const noexcept { return rows_ == 0; }
  BasisStore store() const noexcept { return store_; }
  std::size_t bytes() const noexcept { return numbers_.bytes() + scales_.bytes(); }
  // f32 alone.
  const float* floats() const noexcept { return numbers_.as<float>(); }
  // [cols], int8 alone.
  std::span<const float> scales() const noexcept {
    return {scales_.as<float>(), store_ == BasisStore::kInt8 ? cols_ : 0};
  }
  // All of it, [rows, cols].
  std::vector<float> decoded() const;

  // to [cols] += x [count] times rows first .. first + count - 1.
  void add_rows(std::size_t first, std::size_t count, const float* x, float* to) const noexcept;
  // to[i] = row first + i . c, i < count.
  void dot_rows(std::size_t first, std::size_t count, const float* c, float* to) const noexcept;

 private:
  static constexpr std::size_t kPiece = 128;  // numbers decoded at once
  // Numbers from .. from + count - 1 of a row.
  const float* decode(std::size_t row, std::size_t from, std::size_t count,
                      float* piece) const noexcept;

  BasisStore store_ = BasisStore::kF32;
  std::size_t rows_ = 0, cols_ = 0;
  bool identity_ = false;
  Buffer numbers_, scales_;
};

}  // namespace kvspan
