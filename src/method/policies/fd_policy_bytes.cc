// SPDX-License-Identifier: Apache-2.0
// What fd has learnt, as bytes.
#include <limits>

#include "method/policies/fd_policy.h"
#include "method/state_bytes.h"

namespace kvspan {

Status FdPolicy::save(const StateWriter& to) const {
  to.out.put(rows_seen_);
  to.out.put(segments_);
  to.out.put(looked_at_);
  to.out.put(learnt_ahead_);
  to.out.put(length_);
  to.out.put(static_cast<std::uint8_t>(key_learnt_));
  for (const Side* side : {&key_side_, &value_side_}) {
    if (!(side == &key_side_ ? plan_->keys : plan_->values)) continue;
    put_code(side->code, to);
    if (!side->sketch) continue;
    put_tracker(side->sketch.get(), to.out);
    to.out.put(static_cast<std::uint64_t>(side->learnt));
    const std::size_t floats = ring_rows() * side->sketch->dim();
    to.out.put_all(std::span<const float>(side->ring.as<float>(), floats));
  }
  return {};
}

Status FdPolicy::load_side(Side& side, const SidePlan& plan, const StateReader& from) const {
  KVSPAN_TRY(side.code, get_code(plan, from));
  if (!side.sketch) return {};
  KVSPAN_TRY(side.sketch, get_sketch(side.sketch.get(), from));
  KVSPAN_TRY(side.learnt, from.in.get<std::uint64_t>("rows learnt"));
  const std::size_t floats = ring_rows() * side.sketch->dim();
  return from.in.get_finite("last rows", std::span<float>(side.ring.as<float>(), floats),
                            kLargestTrackedEntry);
}

Status FdPolicy::load(Group& group, const StateReader& from) {
  KVSPAN_CHECK_OK(check_segments(group, {.plan = plan_.get()}, from.in));
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max() / 2;
  constexpr auto kPiece = static_cast<std::int32_t>(kPieceRows);
  ByteReader& in = from.in;
  KVSPAN_TRY(rows_seen_, get_between<std::int64_t>("rows seen", 0, kMost, in));
  KVSPAN_TRY(segments_, get_between<std::int64_t>("segments begun", 0, kMost, in));
  KVSPAN_TRY(looked_at_, get_between<std::int32_t>("rows looked at", 0, kPiece - 1, in));
  KVSPAN_TRY(learnt_ahead_, get_between<std::int32_t>("rows learnt ahead", 0, kMostTokens, in));
  KVSPAN_TRY(length_, get_between<std::int32_t>("rows of the segment", 0, kMostTokens, in));
  if (from.version >= 4) {
    KVSPAN_TRY(const auto learnt, get_between<std::uint8_t>("key learnt before its value", 0, 1, in));
    key_learnt_ = learnt != 0;
  }
  if (plan_->keys) KVSPAN_CHECK_OK(load_side(key_side_, *plan_->keys, from));
  if (plan_->values) KVSPAN_CHECK_OK(load_side(value_side_, *plan_->values, from));
  if (looked_at_ > 0 && !ready()) {
    return fail(ErrorCode::kCorruptData,
                "{}: {} rows looked at before byte {}; allowed: 0 as long as there is no code",
                in.what(), looked_at_, in.offset());
  }
  return {};
}

}  // namespace kvspan
