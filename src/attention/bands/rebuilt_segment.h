// SPDX-License-Identifier: Apache-2.0
// Rebuilt rows in f16, as a segment that attention at full rank reads: for processors that do not add products of bytes
// at once, to which two digits of a key cost more than a float.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/bands/rebuilt_sink.h"
#include "cache/bands/bands_code.h"
#include "cache/segments/segment_list.h"

namespace kvspan {

class RebuiltSegment final : public RebuiltSink {
 public:
  // Room for so many rows. Throws std::bad_alloc.
  RebuiltSegment(std::int32_t heads, std::int32_t key_dim, std::int32_t value_dim, std::int32_t rows);

  // Rows at these positions are what comes next, of values whose means are those of the code.
  void start(const Positions& positions, const BandsCode& values);
  void put_key(std::int32_t head, std::int32_t row, float* numbers) noexcept override;
  void put_value(std::int32_t head, std::int32_t row, float* numbers) noexcept override;
  const SegmentList& list() const noexcept { return list_; }

  std::size_t bytes() const noexcept { return rows_.keys.bytes() + rows_.values.bytes(); }

 private:
  SegmentList list_;
  Segment rows_;  // shares its memory with the list's
  const BandsCode* values_ = nullptr;
};

}  // namespace kvspan
