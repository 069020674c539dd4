// SPDX-License-Identifier: Apache-2.0
#include "cache/segment_list.h"

#include <algorithm>

#include "base/expect.h"
#include "cache/coded_side.h"

namespace kvspan {
namespace {

// Capacity of the segment that begins after `tokens` tokens: doubles until it is kCapacity.
std::int32_t capacity_after(std::int32_t tokens) {
  return std::clamp(tokens, SegmentList::kFirstCapacity, SegmentList::kCapacity);
}

}  // namespace

SegmentList::SegmentList(const GroupShape& shape, std::shared_ptr<Ledger> ledger)
    : shape_(shape), ledger_(std::move(ledger)) {}

std::int32_t SegmentList::next_position() const noexcept {
  if (tokens_ == 0) return 0;
  const Positions& last = segments_.back().positions;
  return last.at(last.size() - 1) + 1;
}

void SegmentList::extend(std::span<const std::int32_t> positions) {
  const std::int32_t before = tokens_;
  try {
    for (const std::int32_t position : positions) {
      KVSPAN_EXPECT(position >= next_position(), "positions increase");
      if (segments_.empty() || segments_.back().room() == 0) {
        Segment segment;
        segment.capacity = capacity_after(tokens_);
        segment.keys =
            RowSide(shape_.heads, shape_.key_dim, segment.capacity, shape_.element, ledger_);
        segment.values =
            RowSide(shape_.heads, shape_.value_dim, segment.capacity, shape_.element, ledger_);
        segments_.push_back(std::move(segment));
      } else if (tokens_ == before) {
        segments_.back().prepare(ledger_);
      }
      segments_.back().positions.push(position, segments_.back().capacity, ledger_);
      ++tokens_;
    }
  } catch (...) {
    forget_after(before);
    throw;
  }
}

void SegmentList::write(std::int32_t first, const TensorView<const float, 3>& keys,
                        const TensorView<const float, 3>& values, std::int32_t head,
                        std::int32_t begin, std::int32_t end) noexcept {
  KVSPAN_DEBUG_EXPECT(first + end <= tokens_, "rows are written where extend made room");
  if (begin >= end) return;
  // Rows arrive at the end, so the segments are found from there.
  auto segment = segments_.end();
  std::int32_t start = tokens_;
  do {
    --segment;
    start -= segment->tokens();
  } while (start > first + begin);
  for (std::int32_t i = begin; i < end; ++i) {
    while (first + i - start >= segment->tokens()) {
      start += segment->tokens();
      ++segment;
    }
    segment->keys.write(head, first + i - start, keys.row(i, head));
    segment->values.write(head, first + i - start, values.row(i, head));
  }
}

void SegmentList::truncate(std::int32_t position) {
  std::int32_t keep = 0;
  for (const Segment& segment : segments_) keep += segment.positions.lower_bound(position);
  forget_after(keep);
}

void SegmentList::forget_after(std::int32_t tokens) {
  while (!segments_.empty() && tokens_ - segments_.back().tokens() >= tokens) {
    tokens_ -= segments_.back().tokens();
    segments_.pop_back();
  }
  if (tokens_ > tokens) {
    Positions& last = segments_.back().positions;
    last.truncate(last.size() - (tokens_ - tokens));
    tokens_ = tokens;
  }
}

void SegmentList::clear() noexcept {
  segments_.clear();
  tokens_ = 0;
}

void SegmentList::append(Segment segment) {
  KVSPAN_EXPECT(segment.tokens() > 0 && segment.positions.at(0) >= next_position(),
                "positions increase");
  tokens_ += segment.tokens();
  segments_.push_back(std::move(segment));
}

std::size_t SegmentList::full_rank_bytes() const noexcept {
  std::size_t sum = 0;
  for (const Segment& segment : segments_) sum += segment.keys.bytes() + segment.values.bytes();
  return sum;
}

std::size_t SegmentList::position_bytes() const noexcept {
  std::size_t sum = 0;
  for (const Segment& segment : segments_) {
    sum += segment.positions.bytes();
    if (segment.coded_keys) sum += segment.coded_keys->residual_bytes();
    if (segment.coded_values) sum += segment.coded_values->residual_bytes();
  }
  return sum;
}

void SegmentList::add_bytes(CacheBytes& bytes) const {
  std::vector<const Code*> codes;
  CacheBytes sum;
  sum.full_rank = full_rank_bytes();
  sum.positions = position_bytes();
  const auto add_side = [&](const CodedSide* side) {
    if (side == nullptr) return;
    sum.coefficients += side->coefficient_bytes();
    sum.scales += side->scale_bytes();
    for (const CodedSide::Part& part : side->parts()) codes.push_back(part.code.get());
  };
  for (const Segment& segment : segments_) {
    add_side(segment.coded_keys.get());
    add_side(segment.coded_values.get());
  }
  std::sort(codes.begin(), codes.end());
  codes.erase(std::unique(codes.begin(), codes.end()), codes.end());
  for (const Code* code : codes) {
    (code->memory_kind() == MemoryKind::kShared ? sum.shared : sum.bases) += code->bytes();
  }
  bytes.full_rank += sum.full_rank;
  bytes.coefficients += sum.coefficients;
  bytes.scales += sum.scales;
  bytes.bases += sum.bases;
  bytes.positions += sum.positions;
  bytes.shared += sum.shared;
  bytes.total += sum.full_rank + sum.coefficients + sum.scales + sum.bases + sum.positions;
}

}  // namespace kvspan
