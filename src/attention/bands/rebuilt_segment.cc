// SPDX-License-Identifier: Apache-2.0
#include "attention/bands/rebuilt_segment.h"

namespace kvspan {

RebuiltSegment::RebuiltSegment(std::int32_t heads, std::int32_t key_dim, std::int32_t value_dim, std::int32_t rows)
    : list_({heads, key_dim, value_dim, Element::kF16}, nullptr) {
  rows_.capacity = rows;
  rows_.keys = RowSide(heads, key_dim, rows, Element::kF16, nullptr);
  rows_.values = RowSide(heads, value_dim, rows, Element::kF16, nullptr);
}

void RebuiltSegment::start(const Positions& positions, const BandsCode& values) {
  values_ = &values;
  rows_.positions = positions;
  list_.clear();
  if (positions.size() > 0) list_.append(rows_);
}

void RebuiltSegment::put_key(std::int32_t head, std::int32_t row, float* numbers) noexcept {
  rows_.keys.write(head, row, numbers);
}

void RebuiltSegment::put_value(std::int32_t head, std::int32_t row, float* numbers) noexcept {
  const float* const mean = values_->value_mean(head);
  for (std::int32_t i = 0; i < list_.shape().value_dim; ++i) numbers[i] += mean[i];
  rows_.values.write(head, row, numbers);
}

}  // namespace kvspan
