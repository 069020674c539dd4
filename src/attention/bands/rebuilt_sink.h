// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace kvspan {

// Where rebuilt rows go.
class RebuiltSink {
 public:
  virtual ~RebuiltSink() = default;
  // Row `row` of a head, zeros from its dimension up to the padded one; its numbers may be changed.
  virtual void put_key(std::int32_t head, std::int32_t row, float* numbers) noexcept = 0;
  virtual void put_value(std::int32_t head, std::int32_t row, float* numbers) noexcept = 0;
};

}  // namespace kvspan
