// SPDX-License-Identifier: Apache-2.0
// From rows to a segment: what a method calls once it knows with which codes.
#pragma once

#include <memory>
#include <span>

#include "base/memory.h"
#include "cache/code/code.h"
#include "cache/segments/segment_list.h"
#include "kvspan/cache.h"
#include "kvspan/result.h"

namespace kvspan {

// The codes of a segment; a side without codes stays full rank.
struct SegmentCodes {
  std::span<const std::shared_ptr<const Code>> keys;
  std::span<const std::shared_ptr<const Code>> values;
  bool residuals = true;  // keep what each token lost, for certificates
};

// A segment of exactly these rows (at least one), on the list's ledger when given that. Fails where
// CodedSide::encode does. SegmentList::append takes the result.
Result<Segment> encode_rows(const KvRows& rows, const GroupShape& shape, const SegmentCodes& codes,
                            const std::shared_ptr<Ledger>& ledger);

}  // namespace kvspan
