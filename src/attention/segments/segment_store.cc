// SPDX-License-Identifier: Apache-2.0
#include "attention/segments/segment_store.h"

#include <algorithm>

#include "attention/attend.h"
#include "attention/certificate/certificate_segments.h"
#include "base/fail.h"
#include "cache/code/coded_side.h"
#include "cache/segments/segment_list_bytes.h"

namespace kvspan {
namespace {

// A factor of the logits is one of the keys.
void scale_keys(const Segment& segment, const TensorView<float, 3>& keys) {
  for (std::size_t h = 0; segment.coded_keys != nullptr && h < keys.shape[1]; ++h) {
    const float gamma = segment.coded_keys->part(static_cast<std::int32_t>(h)).code->gamma();
    for (std::size_t t = 0; gamma != 1.0f && t < keys.shape[0]; ++t) {
      for (std::size_t i = 0; i < keys.shape[2]; ++i) keys.row(t, h)[i] *= gamma;
    }
  }
}

// Marks all of a unit where some of it is marked; 0: all are one unit.
void keep_units(std::span<std::uint8_t> marks, std::size_t unit) {
  if (unit == 1) return;
  for (std::size_t first = 0, n = 0; first < marks.size(); first += n) {
    n = std::min(unit > 0 ? unit : marks.size(), marks.size() - first);
    const auto tokens = marks.subspan(first, n);
    if (std::ranges::any_of(tokens, [](std::uint8_t mark) { return mark != 0; })) {
      std::ranges::fill(tokens, std::uint8_t{1});
    }
  }
}

}  // namespace

HeadGroup HeadGroups::operator[](std::size_t i) const noexcept {
  if (parts_.empty()) return groups_[i];
  return {parts_[i].first_head, &static_cast<const SegmentStore*>(parts_[i].store)->list()};
}

std::int32_t SegmentStore::first_position() const noexcept {
  return empty() ? 0 : list_.position(0);
}

void SegmentStore::read(std::int32_t first, std::int32_t end, RowBlock& to) const {
  const auto heads = static_cast<std::size_t>(to.heads), dk = static_cast<std::size_t>(to.key_dim);
  std::int32_t index = 0;  // of the segment's first token
  for (const Segment& segment : list_.segments()) {
    const IndexRange part = segment.positions.between(first, end - 1);
    const auto n = static_cast<std::size_t>(part.size());
    if (!part.empty()) {
      const std::size_t before = to.size();
      to.grow(n);
      const TensorView<float, 3> keys(to.keys.data() + before * to.key_width(), {n, heads, dk});
      list_.read(index + part.begin, keys,
                 {to.values.data() + before * to.value_width(),
                  {n, heads, static_cast<std::size_t>(to.value_dim)}},
                 std::span(to.positions).last(n));
      scale_keys(segment, keys);
    }
    index += segment.tokens();
  }
}

Status SegmentStore::attend(const AttendCall& call, std::span<const StorePart> parts,
                            AttentionScratch& scratch, Team& team) const {
  return attend_segments(call.layer, parts, call.queries, call.out, call.lse, scratch, team, call.adds);
}

Result<std::unique_ptr<StoreFacts>> SegmentStore::facts(const LayerShape& layer,
                                                        std::int32_t head) const {
  return segment_facts(layer, list_, head);
}

std::int32_t SegmentStore::forget_before(std::int32_t position) {
  std::size_t gone = 0;
  std::int32_t end = 0;
  for (const Segment& segment : list_.segments()) {
    const std::int32_t last = segment.positions.at(segment.tokens() - 1);
    if (last >= position) break;
    gone += static_cast<std::size_t>(segment.tokens());
    end = last + 1;
  }
  if (gone > 0) list_.select(0, std::vector<std::uint8_t>(gone, 0));
  return end;
}

std::unique_ptr<SegmentStore> SegmentStore::chosen_rows(std::span<const std::uint8_t> keep) const {
  std::vector<std::uint8_t> mask;
  for (const Segment& segment : list_.segments()) {
    const std::size_t first = mask.size();
    for (std::int32_t t = 0; t < segment.tokens(); ++t) {
      mask.push_back(keep[static_cast<std::size_t>(segment.positions.at(t))]);
    }
    keep_units(std::span(mask).subspan(first), static_cast<std::size_t>(segment.unit()));
  }
  if (std::find(mask.begin(), mask.end(), std::uint8_t{0}) == mask.end()) return nullptr;
  auto some = std::make_unique<SegmentStore>(list_);
  some->list_.select(0, mask);
  return some;
}

void SegmentStore::save(const StateWriter& to) const {
  kvspan::save(list_, to.codes, to.out, to.runs);
}

Status SegmentStore::load(const StateReader& from) {
  KVSPAN_TRY(list_,
             load_segment_list(list_.shape(), list_.growth(), from.codes, from.in, from.ledger));
  return {};
}

}  // namespace kvspan
