// SPDX-License-Identifier: Apache-2.0
#include "cache/code/basis_matrix.h"

#include <algorithm>
#include <cmath>

#include "base/cpu_level.h"
#include "cache/rows/dot.h"
#include "cache/rows/narrow.h"
#include "codec/kernels.h"

namespace kvspan {
namespace {

bool is_identity(std::size_t rows, std::size_t cols, const float* numbers) {
  if (rows != cols) return false;
  for (std::size_t i = 0; i < rows * cols; ++i) {
    if (numbers[i] != (i % (cols + 1) == 0 ? 1.0f : 0.0f)) return false;
  }
  return true;
}

}  // namespace

BasisMatrix::BasisMatrix(BasisStore store, std::size_t rows, std::size_t cols, const float* numbers,
                         std::span<const float> scales, MemoryKind kind,
                         const std::shared_ptr<Ledger>& ledger)
    : store_(store), rows_(rows), cols_(cols) {
  const std::size_t count = rows * cols;
  identity_ = store != BasisStore::kInt8 && is_identity(rows, cols, numbers);
  if (store == BasisStore::kF32) {
    numbers_ = Buffer(count * sizeof(float), kind, ledger);
    std::copy_n(numbers, count, numbers_.as<float>());
    return;
  }
  if (store == BasisStore::kF16) {
    numbers_ = Buffer(count * sizeof(Half), kind, ledger);
    narrow_to_half(numbers, count, numbers_.as<Half>());
    return;
  }
  numbers_ = Buffer(count, kind, ledger);
  scales_ = Buffer(cols * sizeof(float), kind, ledger);
  for (std::size_t i = 0; i < cols; ++i) {
    float most = 0.0f;
    for (std::size_t j = 0; j < rows; ++j) most = std::max(most, std::abs(numbers[j * cols + i]));
    const float step = !scales.empty() ? scales[i] : most / 127.0f;
    double length = 0.0;
    for (std::size_t j = 0; j < rows; ++j) {
      const float n = step > 0.0f ? std::nearbyint(numbers[j * cols + i] / step) : 0.0f;
      numbers_.as<std::int8_t>()[j * cols + i] =
          static_cast<std::int8_t>(std::clamp(n, -127.0f, 127.0f));
      length += double{n} * double{n};
    }
    scales_.as<float>()[i] = !scales.empty() ? scales[i]
                             : length > 0.0  ? static_cast<float>(1.0 / std::sqrt(length))
                                             : 0.0f;
  }
}

const float* BasisMatrix::decode(std::size_t row, std::size_t from, std::size_t count,
                                 float* piece) const noexcept {
  const std::size_t at = row * cols_ + from;
  if (store_ == BasisStore::kF32) return numbers_.as<float>() + at;
  if (store_ == BasisStore::kF16) {
    codec_kernels(cpu_level()).f16_to_f32(numbers_.as<Half>() + at, count, piece);
    return piece;
  }
  const std::int8_t* n = numbers_.as<std::int8_t>() + at;
  const float* scale = scales_.as<float>() + from;
  for (std::size_t i = 0; i < count; ++i) piece[i] = scale[i] * static_cast<float>(n[i]);
  return piece;
}

std::vector<float> BasisMatrix::decoded() const {
  std::vector<float> all(rows_ * cols_);
  float piece[kPiece];
  for (std::size_t j = 0; j < rows_; ++j) {
    for (std::size_t i = 0; i < cols_; i += kPiece) {
      const std::size_t n = std::min(kPiece, cols_ - i);
      std::copy_n(decode(j, i, n, piece), n, all.data() + j * cols_ + i);
    }
  }
  return all;
}

void BasisMatrix::add_rows(std::size_t first, std::size_t count, const float* x,
                           float* to) const noexcept {
  if (identity_) {
    for (std::size_t j = 0; j < count; ++j) to[first + j] += x[j];
    return;
  }
  float piece[kPiece];
  for (std::size_t j = 0; j < count; ++j) {
    const float factor = x[j];
    for (std::size_t i = 0; i < cols_; i += kPiece) {
      const std::size_t n = std::min(kPiece, cols_ - i);
      const float* row = decode(first + j, i, n, piece);
      for (std::size_t k = 0; k < n; ++k) to[i + k] += factor * row[k];
    }
  }
}

void BasisMatrix::dot_rows(std::size_t first, std::size_t count, const float* c,
                           float* to) const noexcept {
  if (identity_) {
    std::copy_n(c + first, count, to);
    return;
  }
  float piece[kPiece];
  for (std::size_t j = 0; j < count; ++j) {
    float sum = 0.0f;
    for (std::size_t i = 0; i < cols_; i += kPiece) {
      const std::size_t n = std::min(kPiece, cols_ - i);
      sum += dot(decode(first + j, i, n, piece), c + i, n);
    }
    to[j] = sum;
  }
}

}  // namespace kvspan
