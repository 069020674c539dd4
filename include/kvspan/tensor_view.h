// SPDX-License-Identifier: Apache-2.0
// Non-owning view of a dense array: pointer, extents and strides, both in elements. The last dimension
// is contiguous (stride 1); the others may be strided, so a slice of a larger activation needs no copy.
#pragma once

#include <array>
#include <cstddef>

namespace kvspan {

template <class T, std::size_t N>
struct TensorView {
  T* data = nullptr;
  std::array<std::size_t, N> shape{};
  std::array<std::size_t, N> strides{};

  TensorView() = default;
  // Dense, row-major.
  TensorView(T* pointer, std::array<std::size_t, N> extents) : data(pointer), shape(extents) {
    std::size_t step = 1;
    for (std::size_t i = N; i-- > 0;) {
      strides[i] = step;
      step *= shape[i];
    }
  }
  TensorView(T* pointer, std::array<std::size_t, N> extents, std::array<std::size_t, N> steps)
      : data(pointer), shape(extents), strides(steps) {}

  // Pointer to the (contiguous) last dimension at the given leading indices.
  template <class... I>
  T* row(I... index) const {
    static_assert(sizeof...(I) == N - 1);
    const std::array<std::size_t, N - 1> at{static_cast<std::size_t>(index)...};
    T* p = data;
    for (std::size_t i = 0; i + 1 < N; ++i) p += at[i] * strides[i];
    return p;
  }
  bool empty() const { return data == nullptr || shape[0] == 0; }
};

}  // namespace kvspan
