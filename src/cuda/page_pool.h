// SPDX-License-Identifier: Apache-2.0
// Pages of one budget, of two sizes: codes and full-rank rows. Codes are taken from the low end of
// the memory, rows from the high end, so that neither has a share of its own; pages that come back
// are given out again first, to their own kind. Pages are counted by owners, so that forked
// sequences can share them. Knows addresses only: no device is needed to test it. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kvspan/result.h"

namespace kvspan::cuda {

enum class PageKind : std::uint8_t { kCodes, kRows };

class PagePool {
 public:
  PagePool() = default;
  // A size of 0: there are no pages of that kind.
  PagePool(std::size_t budget_bytes, std::size_t code_page_bytes, std::size_t row_page_bytes);

  // A page with one owner. Fails when the budget is spent. Page i of codes begins i pages after the
  // low end, page i of rows i + 1 pages before the high end.
  Result<std::int32_t> take(PageKind kind);
  void share(PageKind kind, std::int32_t page);  // one more owner
  void give_back(PageKind kind, std::int32_t page);
  bool shared(PageKind kind, std::int32_t page) const;

  std::size_t page_bytes(PageKind kind) const noexcept { return side(kind).bytes; }
  std::size_t pages(PageKind kind) const noexcept;  // that have owners
  // Bytes that could still be taken by pages of a kind.
  std::size_t free_bytes(PageKind kind) const noexcept;

 private:
  struct Side {
    std::size_t bytes = 0;
    std::vector<std::int32_t> owners;  // of each page ever taken
    std::vector<std::int32_t> free;
  };
  const Side& side(PageKind kind) const noexcept {
    return kind == PageKind::kCodes ? codes_ : rows_;
  }
  Side& side(PageKind kind) noexcept { return kind == PageKind::kCodes ? codes_ : rows_; }
  std::size_t untouched() const noexcept;

  std::size_t budget_ = 0;
  Side codes_, rows_;
};

}  // namespace kvspan::cuda
