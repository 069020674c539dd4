// SPDX-License-Identifier: Apache-2.0
// Making and passing on errors.
//     return fail(ErrorCode::kInvalidArgument, "rank {} exceeds head dimension {}", r, d);
//     KVSPAN_TRY(auto basis, tracker.basis(r));      // declares basis, or returns the error
//     KVSPAN_CHECK_OK(cache.truncate(n));            // returns the error, if any
#pragma once

#include <fmt/format.h>

#include <new>
#include <utility>

#include "kvspan/result.h"

namespace kvspan {

// Throws nothing: where there is no memory for the text, it says that alone (short enough to need
// none).
template <class... Args>
Error fail(ErrorCode code, fmt::format_string<Args...> text, Args&&... args) noexcept {
  try {
    return Error{code, fmt::format(text, std::forward<Args>(args)...)};
  } catch (const std::bad_alloc&) {
    return Error{code, "no memory"};
  }
}

}  // namespace kvspan

#define KVSPAN_DETAIL_JOIN2(a, b) a##b
#define KVSPAN_DETAIL_JOIN(a, b) KVSPAN_DETAIL_JOIN2(a, b)

#define KVSPAN_TRY(declaration, expression) \
  KVSPAN_DETAIL_TRY(declaration, expression, KVSPAN_DETAIL_JOIN(kvspan_result_, __LINE__))
#define KVSPAN_DETAIL_TRY(declaration, expression, result)   \
  auto result = (expression);                                \
  if (!result.has_value()) return std::move(result).error(); \
  declaration = std::move(result).value()

#define KVSPAN_CHECK_OK(expression)                                        \
  do {                                                                     \
    if (auto kvspan_checked_ = (expression); !kvspan_checked_.has_value()) \
      return std::move(kvspan_checked_).error();                           \
  } while (false)
