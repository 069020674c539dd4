// SPDX-License-Identifier: Apache-2.0
// What bands has learnt as bytes, and whether rows and tiles of loaded groups belong together.
#include <algorithm>
#include <limits>
#include <vector>

#include "base/fail.h"
#include "method/bands/bands_policy.h"
#include "method/state_bytes.h"

namespace kvspan {
namespace {

// Whether two groups hold the same tokens, at full rank and at 8 bits alike.
bool same_tokens(const Group& a, const Group& b) {
  const Extent &x = a.extent(), &y = b.extent();
  if (x.first != y.first || x.encoded_end != y.encoded_end || x.settled_end != y.settled_end || x.next != y.next ||
      a.list().tokens() != b.list().tokens()) {
    return false;
  }
  for (std::int32_t i = 0; i < a.list().tokens(); ++i) {
    if (a.list().position(i) != b.list().position(i)) return false;
  }
  return true;
}

std::vector<std::int32_t> positions_of(const SegmentList& list) {
  std::vector<std::int32_t> all;
  for (const Segment& segment : list.segments()) {
    for (std::int32_t i = 0; i < segment.tokens(); ++i) all.push_back(segment.positions.at(i));
  }
  return all;
}

// No token is in its tile and in the list.
Status check_escapes(const Group& group, const ByteReader& in) {
  const std::vector<std::int32_t> rows = positions_of(group.list());
  for (const BandsTokens& bands : bands_of(group)) {
    const std::int32_t first = bands.first_position();
    for (auto row = std::lower_bound(rows.begin(), rows.end(), first);
         row != rows.end() && *row < bands.next_position(); ++row) {
      if (bands.escaped(*row - first)) continue;
      return fail(ErrorCode::kCorruptData,
                  "{}: position {} before byte {} is among the rows, and encoded; allowed: one of the two", in.what(), *row,
                  in.offset());
    }
  }
  return {};
}

Status check_rows(const Group& group, const ByteReader& in) {
  const std::int32_t begin = group.extent().encoded_end, end = group.extent().next;
  const std::int32_t found = group.list().tokens() - group.list().index_of(begin);
  if (found == std::max(0, end - begin)) return {};
  return fail(ErrorCode::kCorruptData, "{}: {} rows of positions {} to {} before byte {}; allowed: all of them",
              in.what(), found, begin, end - 1, in.offset());
}

// All of a buffer, what rounds it up to whole cache lines included.
template <class T, class Memory>
std::span<T> floats_of(Memory& memory) noexcept {
  return {memory.template as<float>(), memory.bytes() / sizeof(float)};
}

}  // namespace

Status BandsPolicy::save(const StateWriter& to) const {
  to.out.put(counts_.escaped);
  to.out.put(counts_.usual);
  to.out.put(counts_.worth.keys);
  to.out.put(counts_.worth.values);
  to.out.put(static_cast<std::uint8_t>(!kept_first_.empty()));
  for (const auto& values : kept_first_) to.out.put_all(floats_of<const float>(*values));
  return {};
}

Status BandsPolicy::load(Group& group, const StateReader& from) {
  ByteReader& in = from.in;
  const bool old = from.version < 4;
  std::vector<Group*> layers(group.led().begin(), group.led().end());
  layers.push_back(&group);
  KVSPAN_CHECK_OK(check_escapes(group, in));
  for (Group* layer : layers) {
    if (old && group.extent().encoded_end > group.sink_end()) layer->encoded_before(group.extent().encoded_end);
    KVSPAN_CHECK_OK(check_segments(*layer, {.plan = options_.narrow.get()}, in));
    KVSPAN_CHECK_OK(check_rows(*layer, in));
    if (same_tokens(*layer, group)) continue;
    return fail(ErrorCode::kCorruptData,
                "{}: layers before byte {} hold different tokens; allowed: the same ones, which are coded together",
                in.what(), in.offset());
  }
  std::int64_t coded = std::max(0, group.extent().encoded_end - group.sink_end());
  if (old) {
    KVSPAN_TRY(coded, get_between<std::int64_t>("tokens coded", 0, kMostTokens, in));
  }
  KVSPAN_TRY(counts_.escaped, get_between<std::int64_t>("tokens escaped", 0, coded, in));
  for (const auto& [field, number] :
       {std::pair("usual coding error", &counts_.usual), std::pair("worth of a bit", &counts_.worth.keys),
        std::pair("worth of a bit", &counts_.worth.values)}) {
    KVSPAN_CHECK_OK(in.get_finite(field, std::span<double>(number, 1), std::numeric_limits<double>::max()));
  }
  if (old) return {};
  KVSPAN_TRY(const auto kept, get_between<std::uint8_t>("values of the first token are kept", 0, 1, in));
  for (std::size_t i = 0; kept != 0 && i < layers.size(); ++i) {
    auto values = std::make_shared<Buffer>(value_width(*layers[i]) * sizeof(float), MemoryKind::kSketches, from.ledger);
    KVSPAN_CHECK_OK(in.get_finite("values of the first token", floats_of<float>(*values), std::numeric_limits<float>::max()));
    kept_first_.push_back(std::move(values));
  }
  return {};
}

}  // namespace kvspan
