// SPDX-License-Identifier: Apache-2.0
#include "cache/rows/encode_rows.h"

#include <utility>

#include "base/expect.h"
#include "base/fail.h"
#include "cache/code/coded_side.h"

namespace kvspan {
namespace {

RowSide full_rank(const TensorView<const float, 3>& rows, Element element,
                  const std::shared_ptr<Ledger>& ledger) {
  const auto n = static_cast<std::int32_t>(rows.shape[0]);
  const auto heads = static_cast<std::int32_t>(rows.shape[1]);
  RowSide side(heads, static_cast<std::int32_t>(rows.shape[2]), n, element, ledger);
  for (std::int32_t h = 0; h < heads; ++h) {
    for (std::int32_t t = 0; t < n; ++t) side.write(h, t, rows.row(t, h));
  }
  return side;
}

bool fits(const TensorView<const float, 3>& rows, std::size_t n, std::int32_t heads,
          std::int32_t dim) {
  return rows.shape[0] == n && rows.shape[1] == static_cast<std::size_t>(heads) &&
         rows.shape[2] == static_cast<std::size_t>(dim);
}

}  // namespace

Result<Segment> encode_rows(const KvRows& rows, const GroupShape& shape, const SegmentCodes& codes,
                            const std::shared_ptr<Ledger>& ledger) {
  const std::size_t n = rows.positions.size();
  KVSPAN_EXPECT(n > 0, "a segment has tokens");
  KVSPAN_EXPECT(fits(rows.keys, n, shape.heads, shape.key_dim), "keys are [n, heads, key_dim]");
  KVSPAN_EXPECT(fits(rows.values, n, shape.heads, shape.value_dim),
                "values are [n, heads, value_dim]");
  Segment segment;
  segment.capacity = static_cast<std::int32_t>(n);
  for (const std::int32_t position : rows.positions) {
    segment.positions.push(position, segment.capacity, ledger);
  }
  if (codes.keys.empty()) {
    segment.keys = full_rank(rows.keys, shape.element, ledger);
  } else {
    KVSPAN_TRY(segment.coded_keys, CodedSide::encode({rows.keys, rows.positions}, true, codes.keys,
                                                     codes.residuals, ledger));
  }
  if (codes.values.empty()) {
    segment.values = full_rank(rows.values, shape.element, ledger);
  } else {
    KVSPAN_TRY(segment.coded_values, CodedSide::encode({rows.values, rows.positions}, false,
                                                       codes.values, codes.residuals, ledger));
  }
  return segment;
}

}  // namespace kvspan
