// SPDX-License-Identifier: Apache-2.0
#include "linalg/finite.h"

#include <bit>
#include <cstdint>

#include "base/fail.h"

namespace kvspan {
namespace {

// The exponent of infinity and NaN; as integers, so that the loop over a row becomes vectors.
inline bool not_finite(float x) {
  return (std::bit_cast<std::uint32_t>(x) & 0x7f800000u) == 0x7f800000u;
}
inline bool not_finite(double x) {
  return (std::bit_cast<std::uint64_t>(x) & 0x7ff0000000000000u) == 0x7ff0000000000000u;
}

template <class T>
Status check(TensorView<const T, 2> A, std::string_view what) {
  for (std::size_t i = 0; i < A.shape[0]; ++i) {
    const T* row = A.row(i);
    bool any = false;
    for (std::size_t j = 0; j < A.shape[1]; ++j) any |= not_finite(row[j]);
    if (!any) continue;
    std::size_t j = 0;
    while (!not_finite(row[j])) ++j;
    return fail(ErrorCode::kInvalidArgument, "{}: {} at row {}, column {}; finite numbers only",
                what, row[j], i, j);
  }
  return {};
}

}  // namespace

Status check_finite(MatrixView A, std::string_view what) {
  return check(A, what);
}
Status check_finite(MatrixViewD A, std::string_view what) {
  return check(A, what);
}

}  // namespace kvspan
