// SPDX-License-Identifier: Apache-2.0
#include "kvspan/result.h"

#include <gtest/gtest.h>

#include <memory>

#include "base/fail.h"

namespace kvspan {
namespace {

Result<int> half_of(int n) {
  if (n % 2) return fail(ErrorCode::kInvalidArgument, "{} is odd", n);
  return n / 2;
}
Result<int> quarter_of(int n) {
  KVSPAN_TRY(const int half, half_of(n));
  return half_of(half);
}
Status needs_even(int n) {
  KVSPAN_CHECK_OK(half_of(n));
  return {};
}

TEST(Result, PassesValuesAndErrorsOn) {
  EXPECT_EQ(quarter_of(12).value(), 3);
  EXPECT_EQ(quarter_of(7).error().message, "7 is odd");
  EXPECT_EQ(quarter_of(6).error().message, "3 is odd");
  EXPECT_TRUE(needs_even(2));
  EXPECT_EQ(needs_even(5).error().code, ErrorCode::kInvalidArgument);
}

TEST(Result, HoldsMoveOnlyValues) {
  Result<std::unique_ptr<int>> r(std::make_unique<int>(4));
  std::unique_ptr<int> p = std::move(r).value();
  EXPECT_EQ(*p, 4);
}

}  // namespace
}  // namespace kvspan
