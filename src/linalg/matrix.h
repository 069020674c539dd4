// SPDX-License-Identifier: Apache-2.0
// Dense row-major matrices and the views that the linear algebra takes.
// Capital letters name matrices throughout this room; shapes are [rows, cols].
#pragma once

#include <cstddef>
#include <vector>

#include "kvspan/tensor_view.h"

namespace kvspan {

using MatrixView = TensorView<const float, 2>;
using MatrixViewD = TensorView<const double, 2>;

// Owns its values; starts as zeros. Copies are deep.
template <class T>
class Dense {
 public:
  Dense() = default;
  Dense(std::size_t rows, std::size_t cols) : rows_(rows), cols_(cols), values_(rows * cols) {}

  std::size_t rows() const noexcept { return rows_; }
  std::size_t cols() const noexcept { return cols_; }
  T& operator()(std::size_t i, std::size_t j) noexcept { return values_[i * cols_ + j]; }
  const T& operator()(std::size_t i, std::size_t j) const noexcept {
    return values_[i * cols_ + j];
  }
  T* row(std::size_t i) noexcept { return values_.data() + i * cols_; }
  const T* row(std::size_t i) const noexcept { return values_.data() + i * cols_; }
  T* data() noexcept { return values_.data(); }
  const T* data() const noexcept { return values_.data(); }

  // Valid as long as the matrix lives and is not assigned to.
  TensorView<const T, 2> view() const { return {values_.data(), {rows_, cols_}}; }
  TensorView<T, 2> mutable_view() { return {values_.data(), {rows_, cols_}}; }
  // The first `count` rows.
  TensorView<const T, 2> top(std::size_t count) const { return {values_.data(), {count, cols_}}; }

  bool operator==(const Dense&) const = default;

 private:
  std::size_t rows_ = 0;
  std::size_t cols_ = 0;
  std::vector<T> values_;
};

using Matrix = Dense<float>;
using MatrixD = Dense<double>;

}  // namespace kvspan
