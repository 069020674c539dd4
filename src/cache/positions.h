// SPDX-License-Identifier: Apache-2.0
// The positions of a segment's tokens: increasing, and nearly always consecutive. Consecutive ones
// are two numbers; the first gap brings a list (counted as MemoryKind::kPositions).
// Because they increase, what a query sees (cache/visible.h) is one range of indices.
// Copies share the list until one of them writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/memory.h"

namespace kvspan {

// Half-open range of token indices; empty when begin == end.
struct IndexRange {
  std::int32_t begin = 0;
  std::int32_t end = 0;

  std::int32_t size() const noexcept { return end - begin; }
  bool empty() const noexcept { return begin >= end; }
  bool operator==(const IndexRange&) const = default;
};

class Positions {
 public:
  std::int32_t size() const noexcept { return size_; }
  std::int32_t at(std::int32_t index) const noexcept {
    return list_ ? list_->as<std::int32_t>()[index] : first_ + index;
  }
  // Adds a position beyond the last. `capacity` is the size of the list, should one be needed.
  void push(std::int32_t position, std::int32_t capacity, const std::shared_ptr<Ledger>& ledger);
  // Forgets all but the first `size` positions, and the list if those are consecutive.
  void truncate(std::int32_t size) noexcept;
  // Index of the first position >= `position`; size() when there is none.
  std::int32_t lower_bound(std::int32_t position) const noexcept;
  // Those from position `first` to `last`, both included.
  IndexRange between(std::int32_t first, std::int32_t last) const noexcept;

  std::size_t bytes() const noexcept { return list_ ? list_->bytes() : 0; }

 private:
  std::int32_t first_ = 0;
  std::int32_t size_ = 0;
  std::shared_ptr<Buffer> list_;  // [capacity] int32; null: consecutive from first_
};

}  // namespace kvspan
