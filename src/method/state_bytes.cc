// SPDX-License-Identifier: Apache-2.0
#include "method/state_bytes.h"

#include <utility>

#include "cache/code/coded_side.h"

namespace kvspan {
namespace {

bool fits(const Code& code, const SidePlan& side) {
  return code.heads() == side.style.heads && code.dim() == side.style.dim &&
         code.domain() == side.style.domain && code.codec().spec() == side.style.codec;
}

// The bytes of a tracker's frame, loaded; an error says where the frame begins.
Result<std::unique_ptr<Tracker>> read_tracker(TrackerKind kind, std::size_t dim,
                                              const StateReader& from) {
  ByteReader& in = from.in;
  KVSPAN_TRY(const auto size, in.get<std::uint64_t>("size of a tracker"));
  const std::size_t start = in.offset();
  KVSPAN_TRY(const auto bytes, in.get_bytes("tracker", size));
  Result<std::unique_ptr<Tracker>> tracker = load_tracker(bytes, from.ledger);
  if (!tracker) {
    return fail(ErrorCode::kCorruptData, "{}: tracker at byte {}: {}", in.what(), start,
                tracker.error().message);
  }
  if ((*tracker)->kind() != kind || (*tracker)->dim() != dim) {
    return fail(ErrorCode::kCorruptData,
                "{}: tracker at byte {} is {} of {} dimensions; allowed here: {} of {}", in.what(),
                start, name_of((*tracker)->kind()), (*tracker)->dim(), name_of(kind), dim);
  }
  return tracker;
}

Status other_options(const ByteReader& in) {
  return fail(ErrorCode::kCorruptData,
              "{}: the tracker before byte {} has other options than this recipe gives", in.what(),
              in.offset());
}

Status check_side(const CodedSide* side, const std::optional<SidePlan>* plan,
                  const SegmentCheck& check, const ByteReader& in) {
  const bool planned = plan != nullptr && plan->has_value();
  if ((side != nullptr) != planned) {
    return fail(ErrorCode::kCorruptData,
                "{}: a segment before byte {} has a side that is {}; this recipe codes it {}",
                in.what(), in.offset(), side != nullptr ? "coded" : "full rank",
                planned ? "always" : "never");
  }
  if (side == nullptr) return {};
  const Code& code = *side->parts().front().code;
  const SidePlan& wanted = **plan;
  if (side->parts().size() != 1 || !fits(code, wanted) ||
      (check.orthonormal && !code.orthonormal()) ||
      (check.same_rank && code.rank() != wanted.start->rank())) {
    return fail(ErrorCode::kCorruptData,
                "{}: a segment before byte {} has a code that this recipe does not make", in.what(),
                in.offset());
  }
  return {};
}

}  // namespace

void put_tracker(const Tracker* tracker, ByteWriter& out) {
  if (tracker == nullptr) return;
  const std::vector<std::byte> bytes = tracker->save();
  out.put(static_cast<std::uint64_t>(bytes.size()));
  out.put_bytes(bytes);
}

Result<std::unique_ptr<FrequentDirections>> get_sketch(const FrequentDirections* like,
                                                       const StateReader& from) {
  if (like == nullptr) return std::unique_ptr<FrequentDirections>();
  KVSPAN_TRY(auto tracker, read_tracker(like->kind(), like->dim(), from));
  std::unique_ptr<FrequentDirections> sketch(static_cast<FrequentDirections*>(tracker.release()));
  if (!(sketch->options() == like->options())) return std::move(other_options(from.in)).error();
  return sketch;
}

Result<std::unique_ptr<OjaTracker>> get_oja(const OjaTracker* like, const StateReader& from) {
  if (like == nullptr) return std::unique_ptr<OjaTracker>();
  KVSPAN_TRY(auto tracker, read_tracker(like->kind(), like->dim(), from));
  std::unique_ptr<OjaTracker> oja(static_cast<OjaTracker*>(tracker.release()));
  const OjaOptions &a = oja->options(), &b = like->options();
  // The rate is set anew at every step.
  if (a.rank != b.rank || a.norm != b.norm || a.batch_rows != b.batch_rows) {
    return std::move(other_options(from.in)).error();
  }
  return oja;
}

void put_code(const std::shared_ptr<const Code>& code, const StateWriter& to) {
  to.out.put(static_cast<std::uint8_t>(code != nullptr));
  if (code) to.codes.put(code, to.out);
}

Result<std::shared_ptr<const Code>> get_code(const SidePlan& side, const StateReader& from) {
  ByteReader& in = from.in;
  KVSPAN_TRY(const auto held, get_between<std::uint8_t>("code held", 0, 1, in));
  if (held == 0) return std::shared_ptr<const Code>();
  const std::size_t start = in.offset();
  KVSPAN_TRY(auto code, from.codes.get(side.style.heads, side.style.dim, in));
  if (!fits(*code, side)) {
    return fail(ErrorCode::kCorruptData,
                "{}: the code at byte {} is not one that this recipe makes for this side",
                in.what(), start);
  }
  return code;
}

Status check_segments(const Group& group, const SegmentCheck& check, const ByteReader& in) {
  std::int32_t start = 0;
  for (const Segment& segment : group.list().segments()) {
    start += segment.tokens();
    if (!segment.coded()) continue;
    if (start > group.settled()) {
      return fail(ErrorCode::kCorruptData,
                  "{}: {} tokens before byte {} are settled, but token {} is coded", in.what(),
                  group.settled(), in.offset(), start - 1);
    }
    const CodingPlan* plan = check.plan;
    KVSPAN_CHECK_OK(check_side(segment.coded_keys.get(), plan ? &plan->keys : nullptr, check, in));
    KVSPAN_CHECK_OK(
        check_side(segment.coded_values.get(), plan ? &plan->values : nullptr, check, in));
  }
  return {};
}

}  // namespace kvspan
