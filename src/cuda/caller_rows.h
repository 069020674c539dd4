// SPDX-License-Identifier: Apache-2.0
// Rows of kvspan/cuda.h as kernels take them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/rebuild_call.h"
#include "kvspan/cuda.h"

namespace kvspan::cuda {

inline RowType type_of(DeviceNumber number) {
  switch (number) {
    case DeviceNumber::kF16:
      return RowType::kF16;
    case DeviceNumber::kBF16:
      return RowType::kBF16;
    default:
      return RowType::kF32;
  }
}

inline std::size_t size_of(DeviceNumber number) {
  return number == DeviceNumber::kF32 ? 4 : 2;
}

// A caller's rows as kernels take them, to be read or written.
template <class Pointer, class Rows>
Pointer laid_out(const Rows& rows, std::int32_t heads, std::int32_t dim) {
  return {rows.data, rows.token_stride != 0 ? rows.token_stride : std::int64_t{heads} * dim,
          rows.head_stride != 0 ? rows.head_stride : dim, type_of(rows.number)};
}

inline RowsPointer pointer_to(const DeviceRows& rows, std::int32_t heads, std::int32_t dim) {
  return laid_out<RowsPointer>(rows, heads, dim);
}

}  // namespace kvspan::cuda
