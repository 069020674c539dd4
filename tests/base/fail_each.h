// SPDX-License-Identifier: Apache-2.0
// A call again and again, each time with another of its allocations failing (allocation_watch.h).
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <new>
#include <string>
#include <utility>

#include "kvspan/result.h"
#include "tests/base/allocation_watch.h"
#include "tests/base/sweep.h"

namespace kvspan::testing {

// The failing allocation after the nth: the next; later, where calls do the same again and again, a
// quarter further on, with sanitizers half.
inline std::size_t next_failure(std::size_t nth) {
  if (kSanitized) return nth + 1 + nth / 2;
  return nth + 1 + (nth < 12 ? 0 : nth / 4);
}

// Makes a call on what make() gives, again and again, until no allocation is left that could fail.
// It has to say so by kOutOfBudget. after(state, whether the call succeeded) sees the state after each.
template <class Make, class Call, class After>
void fail_each(const std::string& what, const Make& make, const Call& call, const After& after) {
  for (const Failing failing : {Failing::kOnce, Failing::kFromThen}) {
    bool more = true;
    for (std::size_t nth = 0; more; nth = next_failure(nth)) {
      SCOPED_TRACE(what + ", allocation " + std::to_string(nth) +
                   (failing == Failing::kOnce ? "" : " and all after it"));
      auto state = make();
      Status status;
      try {
        const FailingAllocation fails(nth, failing);
        status = call(state);
        more = fails.reached();
      } catch (const std::bad_alloc&) {
        ADD_FAILURE() << "std::bad_alloc left the call";
      }
      EXPECT_TRUE(more || status) << "failed without a failure";
      EXPECT_TRUE(status || status.error().code == ErrorCode::kOutOfBudget);
      after(state, status.has_value());
      if (::testing::Test::HasFailure()) return;
    }
  }
}

// The outcome of a call, its value left where the caller wants it.
template <class T, class To>
Status take(Result<T> result, To& to) {
  if (!result) return std::move(result).error();
  to = std::move(result).value();
  return {};
}

}  // namespace kvspan::testing
