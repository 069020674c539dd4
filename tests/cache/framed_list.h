// SPDX-License-Identifier: Apache-2.0
// One list of segments alone in a frame, with its codes.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/byte_frame.h"
#include "base/fail.h"
#include "cache/segments/segment_list_bytes.h"

namespace kvspan::testing {

inline constexpr FrameFormat kListFormat{"segments", "KVSPSEG", 1};

inline std::vector<std::byte> save_framed(const SegmentList& list) {
  ByteWriter out;
  begin_frame(kListFormat, 0, out);
  CodeWriter codes({}, out);
  save(list, codes, out);
  end_frame(out);
  return std::move(out.bytes());
}

inline Result<SegmentList> load_framed(std::span<const std::byte> bytes, const GroupShape& shape,
                                       const std::shared_ptr<Ledger>& ledger) {
  KVSPAN_TRY(OpenFrame frame, open_frame(kListFormat, bytes));
  if (frame.kind != 0) return fail(ErrorCode::kCorruptData, "kind at byte 12 is {}", frame.kind);
  KVSPAN_TRY(CodeReader codes, CodeReader::open({}, frame.payload, ledger));
  KVSPAN_TRY(SegmentList list, load_segment_list(shape, {}, codes, frame.payload, ledger));
  KVSPAN_CHECK_OK(frame.payload.expect_left("end", 0));
  return list;
}

}  // namespace kvspan::testing
