// SPDX-License-Identifier: Apache-2.0
#include "cache/positions.h"

#include <algorithm>

#include "base/expect.h"
#include "cache/sole_owner.h"

namespace kvspan {

void Positions::push(std::int32_t position, std::int32_t capacity,
                     const std::shared_ptr<Ledger>& ledger) {
  KVSPAN_DEBUG_EXPECT(size_ < capacity, "a segment holds no more than its capacity");
  if (size_ == 0) {
    first_ = position;
    list_.reset();
  } else if (!list_ && position != first_ + size_) {
    auto list = std::make_shared<Buffer>(static_cast<std::size_t>(capacity) * sizeof(std::int32_t),
                                         MemoryKind::kPositions, ledger);
    for (std::int32_t i = 0; i < size_; ++i) list->as<std::int32_t>()[i] = first_ + i;
    list_ = std::move(list);
  }
  if (list_) {
    make_sole_owner(list_, ledger);
    list_->as<std::int32_t>()[size_] = position;
  }
  ++size_;
}

void Positions::truncate(std::int32_t size) noexcept {
  size_ = std::min(size_, size);
  if (!list_) return;
  // As pushing those that are left would have made it.
  first_ = list_->as<std::int32_t>()[0];
  if (size_ == 0 || list_->as<std::int32_t>()[size_ - 1] == first_ + size_ - 1) list_.reset();
}

std::int32_t Positions::lower_bound(std::int32_t position) const noexcept {
  if (!list_) {
    const std::int64_t index = std::int64_t{position} - first_;
    return static_cast<std::int32_t>(std::clamp<std::int64_t>(index, 0, size_));
  }
  const std::int32_t* begin = list_->as<std::int32_t>();
  return static_cast<std::int32_t>(std::lower_bound(begin, begin + size_, position) - begin);
}

IndexRange Positions::between(std::int32_t first, std::int32_t last) const noexcept {
  IndexRange range{0, lower_bound(last)};
  if (range.end < size_ && at(range.end) == last) ++range.end;
  if (first > 0) range.begin = std::min(range.end, lower_bound(first));
  return range;
}

}  // namespace kvspan
