// SPDX-License-Identifier: Apache-2.0
#include "cache/segments/segment_list.h"

#include <algorithm>

#include "base/expect.h"
#include "cache/code/coded_side.h"
#include "cache/segments/join_segments.h"

namespace kvspan {
SegmentList::SegmentList(const GroupShape& shape, std::shared_ptr<Ledger> ledger,
                         const SegmentGrowth& growth)
    : shape_(shape), growth_(growth), ledger_(std::move(ledger)) {}

Segment SegmentList::empty_segment(std::int32_t capacity) const {
  Segment segment;
  segment.capacity = capacity;
  segment.keys = RowSide(shape_.heads, shape_.key_dim, capacity, shape_.element, ledger_);
  segment.values = RowSide(shape_.heads, shape_.value_dim, capacity, shape_.element, ledger_);
  return segment;
}

std::int32_t SegmentList::position(std::int32_t token) const noexcept {
  auto segment = segments_.begin();
  for (; token >= segment->tokens(); ++segment) token -= segment->tokens();
  return segment->positions.at(token);
}

std::int32_t SegmentList::index_of(std::int32_t position) const noexcept {
  std::int32_t index = tokens_;
  for (auto segment = segments_.rbegin(); segment != segments_.rend(); ++segment) {
    const std::int32_t before = segment->positions.lower_bound(position);
    index -= segment->tokens() - before;
    if (before > 0) break;
  }
  return index;
}

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
        segments_.push_back(empty_segment(tokens_ == 0 && growth_.sink > 0
                                              ? growth_.sink
                                              : std::clamp(tokens_, growth_.least, growth_.most)));
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
  forget_after(index_of(position));
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

void SegmentList::read(std::int32_t first, const TensorView<float, 3>& keys,
                       const TensorView<float, 3>& values,
                       std::span<std::int32_t> positions) const {
  const auto read_row = [&](const Segment& from, const CodedSide* coded, const RowSide& rows,
                            std::int32_t head, std::int32_t token, float* to, std::int32_t dim) {
    if (coded == nullptr) return rows.read(head, token, to);
    coded->reconstruct(head, from.positions, token, {to, {1, static_cast<std::size_t>(dim)}});
  };
  auto segment = segments_.begin();
  for (; first >= segment->tokens(); ++segment) first -= segment->tokens();
  for (std::size_t i = 0; i < positions.size(); ++i, ++first) {
    while (first >= segment->tokens()) {
      first -= segment->tokens();
      ++segment;
    }
    positions[i] = segment->positions.at(first);
    for (std::int32_t h = 0; h < shape_.heads; ++h) {
      read_row(*segment, segment->coded_keys.get(), segment->keys, h, first, keys.row(i, h),
               shape_.key_dim);
      read_row(*segment, segment->coded_values.get(), segment->values, h, first, values.row(i, h),
               shape_.value_dim);
    }
  }
}

void SegmentList::copy_rows(const Segment& from, std::int32_t token, Segment& to) const {
  const std::int32_t place = to.tokens();
  to.positions.push(from.positions.at(token), to.capacity, ledger_);
  to.keys.copy(place, from.keys, token);
  to.values.copy(place, from.values, token);
}

void SegmentList::replace(std::int32_t first, Segment segment) {
  std::vector<Segment> rebuilt;
  rebuilt.reserve(segments_.size() + 2);
  const std::int32_t end = first + segment.tokens();
  std::int32_t start = 0;
  bool placed = false;
  std::size_t place = 0;
  for (Segment& old : segments_) {
    const std::int32_t past = start + old.tokens();
    if (past > first && start < end) {
      KVSPAN_EXPECT(!old.coded(), "only full-rank rows are replaced");
      const std::int32_t before = std::max(0, first - start), after = std::max(0, past - end);
      if (before > 0) {
        Segment kept = empty_segment(before);
        for (std::int32_t t = 0; t < before; ++t) copy_rows(old, t, kept);
        rebuilt.push_back(std::move(kept));
      }
      if (!placed) {
        place = rebuilt.size();
        rebuilt.push_back(segment);
      }
      placed = true;
      if (after > 0) {
        // The last segment keeps its capacity: rows may still come.
        Segment kept = empty_segment(&old == &segments_.back() ? old.capacity : after);
        for (std::int32_t t = old.tokens() - after; t < old.tokens(); ++t) copy_rows(old, t, kept);
        rebuilt.push_back(std::move(kept));
      }
    } else {
      rebuilt.push_back(old);
    }
    start = past;
  }
  KVSPAN_EXPECT(placed && end <= start, "the list holds the rows that are replaced");
  join_before(rebuilt, place, growth_.joined, shape_, ledger_);
  segments_ = std::move(rebuilt);
}

void SegmentList::exchange(std::size_t index, Segment segment) {
  KVSPAN_EXPECT(index < segments_.size() && segments_[index].tokens() == segment.tokens(),
                "the same tokens");
  segments_[index] = std::move(segment);
}

Segment SegmentList::selected(const Segment& from, std::span<const std::uint8_t> keep,
                              bool open) const {
  std::vector<std::int32_t> kept;
  for (std::int32_t t = 0; t < from.tokens(); ++t) {
    if (keep[static_cast<std::size_t>(t)] != 0) kept.push_back(t);
  }
  if (!from.coded()) {
    Segment to =
        empty_segment(open ? from.capacity : std::max(1, static_cast<std::int32_t>(kept.size())));
    for (const std::int32_t t : kept) copy_rows(from, t, to);
    return to;
  }
  Segment to;
  to.capacity = static_cast<std::int32_t>(kept.size());
  if (kept.empty()) return to;
  for (const std::int32_t t : kept) to.positions.push(from.positions.at(t), to.capacity, ledger_);
  const auto copy_side = [&](const RowSide& rows, std::int32_t dim) {
    RowSide side(shape_.heads, dim, to.capacity, shape_.element, ledger_);
    for (std::size_t i = 0; i < kept.size(); ++i) {
      side.copy(static_cast<std::int32_t>(i), rows, kept[i]);
    }
    return side;
  };
  if (from.coded_keys) {
    to.coded_keys = from.coded_keys->select(kept, ledger_);
  } else {
    to.keys = copy_side(from.keys, shape_.key_dim);
  }
  if (from.coded_values) {
    to.coded_values = from.coded_values->select(kept, ledger_);
  } else {
    to.values = copy_side(from.values, shape_.value_dim);
  }
  return to;
}

void SegmentList::select(std::int32_t first, std::span<const std::uint8_t> keep) {
  std::vector<Segment> rebuilt;
  std::int32_t start = 0, tokens = 0;
  const std::int32_t end = first + static_cast<std::int32_t>(keep.size());
  for (const Segment& old : segments_) {
    const std::int32_t past = start + old.tokens();
    std::vector<std::uint8_t> mask(static_cast<std::size_t>(old.tokens()), 1);
    bool all = true;
    for (std::int32_t t = std::max(start, first); t < std::min(past, end); ++t) {
      mask[static_cast<std::size_t>(t - start)] = keep[static_cast<std::size_t>(t - first)];
      all &= keep[static_cast<std::size_t>(t - first)] != 0;
    }
    Segment next = all ? old : selected(old, mask, &old == &segments_.back());
    tokens += next.tokens();
    if (next.tokens() > 0) rebuilt.push_back(std::move(next));
    start = past;
  }
  segments_ = std::move(rebuilt);
  tokens_ = tokens;
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

void SegmentList::add_bytes(CacheBytes& bytes, std::vector<const Code*>& codes) const {
  bytes.full_rank += full_rank_bytes();
  bytes.positions += position_bytes();
  const auto add_side = [&](const CodedSide* side) {
    if (side == nullptr) return;
    bytes.coefficients += side->coefficient_bytes();
    bytes.scales += side->scale_bytes();
    for (const CodedSide::Part& part : side->parts()) codes.push_back(part.code.get());
  };
  for (const Segment& segment : segments_) {
    add_side(segment.coded_keys.get());
    add_side(segment.coded_values.get());
  }
}

void finish_bytes(std::vector<const Code*> codes, CacheBytes& bytes) {
  std::sort(codes.begin(), codes.end());
  codes.erase(std::unique(codes.begin(), codes.end()), codes.end());
  for (const Code* code : codes) {
    (code->memory_kind() == MemoryKind::kShared ? bytes.shared : bytes.bases) += code->bytes();
  }
  bytes.total = bytes.full_rank + bytes.coefficients + bytes.scales + bytes.bases + bytes.sketches +
                bytes.positions;
}

}  // namespace kvspan
