// SPDX-License-Identifier: Apache-2.0
// What policies and selectors have learnt as bytes, so that a loaded cache goes on as the saved one
// would have. Each writes its numbers with save() and reads them with load() into a fresh object of
// the same recipe, after its group's tokens. Whatever load() accepts is safe to go on with, were
// the bytes forged or not. Format: docs/reference/formats/cache.md.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "base/byte_stream.h"
#include "cache/state_stream.h"
#include "method/coding_plan.h"
#include "method/group.h"
#include "subspace/frequent_directions.h"
#include "subspace/oja.h"

namespace kvspan {

// Positions and counts of tokens in saved bytes; far enough from overflow to add to.
inline constexpr std::int32_t kMostTokens = 1 << 30;

// A number from low to high.
template <class T>
Result<T> get_between(std::string_view field, T low, T high, ByteReader& in) {
  KVSPAN_TRY(const T value, in.get<T>(field));
  if (value < low || value > high) {
    return in.wrong(field, sizeof(T), value, fmt::format("{} to {}", low, high));
  }
  return value;
}

// A tracker in a frame of its own (docs/reference/formats/tracker.md), preceded by its size; null:
// 0. What is read is as `like`, the tracker of a fresh policy: of its kind, dimension and options.
void put_tracker(const Tracker* tracker, ByteWriter& out);
Result<std::unique_ptr<FrequentDirections>> get_sketch(const FrequentDirections* like,
                                                       const StateReader& from);
Result<std::unique_ptr<OjaTracker>> get_oja(const OjaTracker* like, const StateReader& from);

// A code that the policy holds, or none; what is read fits the side.
void put_code(const std::shared_ptr<const Code>& code, const StateWriter& to);
Result<std::shared_ptr<const Code>> get_code(const SidePlan& side, const StateReader& from);

// Coded segments are as a policy of this plan makes them; without a plan there are none.
// `orthonormal`: so are their codes. `same_rank`: theirs is that of the plan's start.
struct SegmentCheck {
  const CodingPlan* plan = nullptr;
  bool orthonormal = false;
  bool same_rank = false;
};
Status check_segments(const Group& group, const SegmentCheck& check, const ByteReader& in);

}  // namespace kvspan
