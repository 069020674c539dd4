// SPDX-License-Identifier: Apache-2.0
// Refusing NaN and infinity at the door, so that nothing behind it has to think of them.
#pragma once

#include <string_view>

#include "kvspan/result.h"
#include "linalg/matrix.h"

namespace kvspan {

// An Error names `what`, the value, and the row and column of the first entry that is not finite.
// Cost: one pass over the matrix.
Status check_finite(MatrixView A, std::string_view what);
Status check_finite(MatrixViewD A, std::string_view what);

}  // namespace kvspan
