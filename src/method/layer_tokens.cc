// SPDX-License-Identifier: Apache-2.0
#include "method/layer_tokens.h"

#include <numeric>
#include <utility>

#include "base/expect.h"
#include "base/fail.h"
#include "cache/visible.h"
#include "method/group.h"
#include "method/policies/policy.h"

namespace kvspan {
namespace {

// Of which plain numbers can be made.
Status check_ends(const Group& group) {
  const GroupOptions& options = group.options();
  if (options.ends == Element::kF16 && !options.residuals && !options.scores) return {};
  return fail(ErrorCode::kUnsupported,
              "rows that are not f16, residual norms and received attention are the host's alone");
}

Error missing(std::int32_t found, std::int32_t wanted) {
  return fail(ErrorCode::kUnsupported,
              "position {} where {} was next; allowed: positions that follow each other", found,
              wanted);
}

// Which positions a group holds whose codes are those of `codes`, as ranges of LayerTokens.
Result<LayerTokens> ranges_of(const Group& group, PositionRange codes) {
  const std::int32_t next = group.extent().next;
  LayerTokens held;
  held.next = next;
  held.least = group.extent().evicted_end;
  held.sink = group.options().sink;
  const SegmentList& list = group.list();
  const bool coded = codes.size() > 0;
  const std::int32_t begin = codes.first;
  if (coded) held.coded = codes.last;
  std::int32_t before = 0;  // rows before the codes
  while (coded && before < list.tokens() && list.position(before) < begin) ++before;
  const auto first_of = [&](std::int32_t index, std::int32_t otherwise) {
    return index < list.tokens() ? list.position(index) : otherwise;
  };
  held.first = before > 0 ? list.position(0) : coded ? begin : first_of(0, next);
  if (coded && begin != std::max(held.first, held.sink)) return missing(begin, held.sink);
  // Rows follow each other, but for the codes between them.
  std::int32_t wanted = held.first;
  for (std::int32_t i = 0; i < list.tokens(); ++i, ++wanted) {
    if (i == before && coded) {
      if (before > 0 && wanted != begin) return missing(begin, wanted);
      wanted = held.coded;
    }
    if (list.position(i) != wanted) return missing(list.position(i), wanted);
  }
  if (before == list.tokens() && coded) wanted = held.coded;
  if (wanted != next) return missing(next, wanted);
  if (held.first > first_seen(group.layer(), next)) return missing(held.first, 0);
  return held;
}

Status check_finite(std::span<const Half> rows, const char* side) {
  const auto found =
      std::find_if(rows.begin(), rows.end(), [](Half x) { return (x.bits & 0x7c00u) == 0x7c00u; });
  if (found == rows.end()) return {};
  return fail(ErrorCode::kInvalidArgument, "{} with the number {}; allowed: finite ones", side,
              to_float(*found));
}

// Rows of positions [first, last) at the end of the list, from row `at` on of those given.
void add_rows(const GroupTokens& from, PositionRange range, std::size_t at, Group& group) {
  const auto n = static_cast<std::size_t>(range.size());
  const auto heads = static_cast<std::size_t>(group.options().heads);
  const auto wide = [&](const std::vector<Half>& rows, std::int32_t dim) {
    std::vector<float> numbers(n * heads * static_cast<std::size_t>(dim));
    const auto first = rows.begin() + static_cast<std::ptrdiff_t>(at * heads) * dim;
    std::transform(first, first + static_cast<std::ptrdiff_t>(numbers.size()), numbers.begin(),
                   [](Half x) { return to_float(x); });
    return numbers;
  };
  const LayerShape& layer = group.layer();
  const std::vector<float> keys = wide(from.keys, layer.key_dim);
  const std::vector<float> values = wide(from.values, layer.value_dim);
  for (std::int32_t h = 0; h < group.options().heads; ++h) {
    group.list().write(group.list().tokens() - range.size(),
                       {keys.data(), {n, heads, static_cast<std::size_t>(layer.key_dim)}},
                       {values.data(), {n, heads, static_cast<std::size_t>(layer.value_dim)}}, h, 0,
                       range.size());
  }
}

std::vector<std::int32_t> positions_of(PositionRange range) {
  std::vector<std::int32_t> positions(static_cast<std::size_t>(range.size()));
  std::iota(positions.begin(), positions.end(), range.first);
  return positions;
}

// Adds rows to the list; those of positions before `held` are zeros.
void extend(PositionRange range, std::int32_t held, Group& group) {
  if (range.size() == 0) return;
  group.list().extend(positions_of(range));
  const PositionRange zeros{range.first, std::min(held, range.last)};
  if (zeros.size() == 0) return;
  const auto n = static_cast<std::size_t>(zeros.size()), heads = std::size_t(group.options().heads);
  const auto dims =
      static_cast<std::size_t>(std::max(group.layer().key_dim, group.layer().value_dim));
  const std::vector<float> none(n * heads * dims);
  const auto view = [&](std::int32_t dim) {
    return TensorView<const float, 3>{none.data(), {n, heads, static_cast<std::size_t>(dim)}};
  };
  for (std::int32_t h = 0; h < group.options().heads; ++h) {
    group.list().write(group.list().tokens() - range.size(), view(group.layer().key_dim),
                       view(group.layer().value_dim), h, 0, zeros.size());
  }
}

Status check_tokens(const LayerTokens& from, const GroupTokens& tokens, const Group& group) {
  const std::size_t rows = from.rows() * static_cast<std::size_t>(group.options().heads);
  if (from.sink != group.options().sink) {
    return fail(ErrorCode::kInvalidArgument, "codes from position {} on; allowed: from {} on",
                from.sink, group.options().sink);
  }
  KVSPAN_EXPECT(from.first >= 0 && from.next >= std::max(from.first, from.coded),
                "positions that are there");
  KVSPAN_EXPECT(from.coded == 0 ||
                    (from.codes().size() > 0 && (from.coded - from.sink) % kCodedTogether == 0 &&
                     from.codes().size() % kCodedTogether == 0),
                "codes in whole sixteens");
  KVSPAN_EXPECT(
      tokens.keys.size() == rows * static_cast<std::size_t>(group.layer().key_dim) &&
          tokens.values.size() == rows * static_cast<std::size_t>(group.layer().value_dim),
      "as many numbers as there are rows");
  if (from.first > first_seen(group.layer(), from.next)) return missing(from.first, 0);
  KVSPAN_CHECK_OK(check_finite(tokens.keys, "keys"));
  return check_finite(tokens.values, "values");
}

}  // namespace

Status add_group(const Group& group, const Policy* policy, LayerTokens& to) {
  KVSPAN_CHECK_OK(check_ends(group));
  GroupTokens tokens;
  PositionRange codes;
  if (policy != nullptr) KVSPAN_CHECK_OK(policy->give_codes(group, tokens, codes));
  KVSPAN_TRY(LayerTokens held, ranges_of(group, codes));
  if (!to.groups.empty() && (to.first != held.first || to.coded != held.coded)) {
    return fail(ErrorCode::kUnsupported,
                "tokens from {} on and codes up to {} where another group of the layer has {} and "
                "{}; allowed: the same in all",
                held.first, held.coded, to.first, to.coded);
  }
  for (const Segment& segment : group.list().segments()) {
    if (!segment.coded()) continue;
    return fail(ErrorCode::kUnsupported, "segments of coded rows; allowed: full-rank ones");
  }
  held.least = std::max(held.least, to.least);
  held.groups = std::move(to.groups);
  to = std::move(held);
  const RowBlock rows = group.read_tokens(0, group.list().tokens());
  for (const float x : rows.keys) tokens.keys.push_back(to_half(x));
  for (const float x : rows.values) tokens.values.push_back(to_half(x));
  to.groups.push_back(std::move(tokens));
  return {};
}

Status fill_group(const LayerTokens& from, std::size_t index, Policy* policy, Group& group) {
  const GroupTokens& tokens = from.groups[index];
  KVSPAN_CHECK_OK(check_ends(group));
  KVSPAN_CHECK_OK(check_tokens(from, tokens, group));
  if (policy != nullptr) {
    KVSPAN_CHECK_OK(policy->take_codes(from, index, group));
  } else if (tokens.code != 0 || from.coded > 0) {
    return fail(ErrorCode::kInvalidArgument, "codes of {:016x}; allowed: rows alone", tokens.code);
  }
  // The sequence begins at 0, also if its first rows are codes.
  group.appended(positions_of({0, from.next}));
  const PositionRange before = from.before(), after = from.after();
  if (from.coded == 0) {
    extend({0, from.next}, from.first, group);
    add_rows(tokens, after, 0, group);
    return {};
  }
  extend({0, from.sink}, from.first, group);
  add_rows(tokens, before, 0, group);
  // Rows come in segments that end where they would had nothing been coded, and the coded ones
  // leave.
  const std::int32_t segment = group.list().growth().most;
  const std::int32_t begin =
      from.sink + (from.coded - kCodedTogether - from.sink) / segment * segment;
  extend({begin, from.next}, from.coded, group);
  add_rows(tokens, after, static_cast<std::size_t>(before.size()), group);
  group.move_out(from.sink,
                 std::vector<std::uint8_t>(static_cast<std::size_t>(from.coded - begin)));
  return {};
}

}  // namespace kvspan
