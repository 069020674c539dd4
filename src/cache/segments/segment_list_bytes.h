// SPDX-License-Identifier: Apache-2.0
// A list of segments as bytes, so that a cache can be kept, sent and read again. What is loaded
// gives the same bits to every reader: rows, coefficients, scales, residual norms and positions are
// stored as they are held. Only unused capacity is not stored; its size is. Format:
// docs/reference/formats/cache.md.
//
// A cache of many lists writes one CodeWriter's table and then its lists into one frame:
//     ByteWriter out;
//     begin_frame(format, kind, out);
//     CodeWriter codes(factory_codes, out);
//     for (const SegmentList& list : lists) save(list, codes, out);
//     end_frame(out);
// and reads them back in that order with open_frame, CodeReader::open and load_segment_list.
#pragma once

#include <memory>
#include <vector>

#include "cache/code/code_bytes.h"
#include "cache/segments/segment_list.h"
#include "kvspan/saved_cache.h"

namespace kvspan {

// `runs`, where given, gets the segments that no later row is added to.
void save(const SegmentList& list, CodeWriter& codes, ByteWriter& out,
          std::vector<SavedRun>* runs = nullptr);
// Fails with kCorruptData, naming field and byte, on anything that save would not have written for
// this shape; nothing else is touched then. `growth` is what the list goes on with, and bounds the
// unused capacity that bytes can ask for.
Result<SegmentList> load_segment_list(const GroupShape& shape, const SegmentGrowth& growth,
                                      CodeReader& codes, ByteReader& in,
                                      const std::shared_ptr<Ledger>& ledger);

}  // namespace kvspan
