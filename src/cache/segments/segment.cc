// SPDX-License-Identifier: Apache-2.0
#include "cache/segments/segment.h"

#include <cstring>
#include <numeric>

#include "cache/code/coded_side.h"
#include "cache/rows/narrow.h"
#include "cache/sole_owner.h"

namespace kvspan {

RowSide::RowSide(std::int32_t heads, std::int32_t dim, std::int32_t capacity, Element element,
                 const std::shared_ptr<Ledger>& ledger)
    : heads_(heads), dim_(dim), stride_(padded_dim(dim)), capacity_(capacity), element_(element) {
  rows_ = std::make_shared<Buffer>(offset_bytes(heads, 0), MemoryKind::kFullRank, ledger);
}

std::size_t RowSide::offset_bytes(std::int32_t head, std::int32_t token) const noexcept {
  const auto row = static_cast<std::size_t>(head) * static_cast<std::size_t>(capacity_) +
                   static_cast<std::size_t>(token);
  return row * static_cast<std::size_t>(stride_) * bytes_of(element_);
}

RowsView RowSide::head(std::int32_t head) const noexcept {
  return {rows_->data() + offset_bytes(head, 0), stride_, element_};
}

void RowSide::write(std::int32_t head, std::int32_t token, const float* row) noexcept {
  std::byte* to = rows_->data() + offset_bytes(head, token);
  if (element_ == Element::kF32) {
    std::memcpy(to, row, static_cast<std::size_t>(dim_) * sizeof(float));
  } else {
    narrow_to_half(row, static_cast<std::size_t>(dim_), reinterpret_cast<Half*>(to));
  }
}

void RowSide::read(std::int32_t head, std::int32_t token, float* row) const noexcept {
  const std::byte* from = rows_->data() + offset_bytes(head, token);
  if (element_ == Element::kF32) {
    std::memcpy(row, from, static_cast<std::size_t>(dim_) * sizeof(float));
  } else {
    const Half* half = reinterpret_cast<const Half*>(from);
    for (std::int32_t i = 0; i < dim_; ++i) row[i] = to_float(half[i]);
  }
}

void RowSide::copy(std::int32_t token, const RowSide& from, std::int32_t from_token) noexcept {
  for (std::int32_t h = 0; h < heads_; ++h) {
    std::memcpy(rows_->data() + offset_bytes(h, token),
                from.rows_->data() + from.offset_bytes(h, from_token),
                static_cast<std::size_t>(stride_) * bytes_of(element_));
  }
}

void RowSide::prepare(const std::shared_ptr<Ledger>& ledger) {
  make_sole_owner(rows_, ledger);
}

std::int32_t Segment::unit() const noexcept {
  const auto of = [](const auto& side) { return side ? side->unit() : 1; };
  return std::lcm(of(coded_keys), of(coded_values));
}

}  // namespace kvspan
