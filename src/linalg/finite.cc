// SPDX-License-Identifier: Apache-2.0
#include "linalg/finite.h"

#include <cmath>

#include "base/fail.h"

namespace kvspan {
namespace {

template <class T>
Status check(TensorView<const T, 2> A, std::string_view what) {
  for (std::size_t i = 0; i < A.shape[0]; ++i) {
    const T* row = A.row(i);
    T poison = 0;  // 0 x is 0 for every finite x and NaN otherwise: no branch in the loop
    for (std::size_t j = 0; j < A.shape[1]; ++j) poison += T{0} * row[j];
    if (poison == T{0}) continue;
    for (std::size_t j = 0; j < A.shape[1]; ++j) {
      if (std::isfinite(row[j])) continue;
      return fail(ErrorCode::kInvalidArgument, "{}: {} at row {}, column {}; finite numbers only",
                  what, row[j], i, j);
    }
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
