// SPDX-License-Identifier: Apache-2.0
// Pages of several sizes out of one budget. The memory is cut into blocks of one size. A kind of
// pages takes a block when those it has are full, and gives it back when no page of it has an
// owner: no kind has a share of its own, and none has more blocks than its pages have ever filled
// at one time. Lost is what is left of a block behind its pages, and what is free in blocks that
// are begun; best_block_bytes keeps both small. Pages are counted by owners, so that forked
// sequences can share them. Knows offsets only: no device is needed to test it. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <set>
#include <span>
#include <vector>

#include "cuda/attend_constants.h"
#include "kvspan/result.h"

namespace kvspan::cuda {

// Pages of one kind that are there at one time.
struct PageNeed {
  std::size_t page_bytes = 0, pages = 0;
};

// What a pool needs so that all of them find a place, whichever come first.
std::size_t pool_bytes_for(std::span<const PageNeed> needs, std::size_t block_bytes);
// The size of blocks that needs least for that; at most a sixteenth of the budget, unless a page is
// larger. Where the budget is not enough for all, each kind counts by its share.
std::size_t best_block_bytes(std::span<const PageNeed> needs,
                             std::size_t budget_bytes = std::numeric_limits<std::size_t>::max());

class PagePool {
 public:
  PagePool() = default;
  // page_bytes: of each kind, up to block_bytes; 0: there are no pages of that kind. All sizes are
  // multiples of kPageUnit.
  PagePool(std::size_t budget_bytes, std::size_t block_bytes, std::vector<std::size_t> page_bytes);

  // A page with one owner: it begins so many kPageUnit after the beginning of the memory. Fails
  // when the budget is spent.
  Result<std::int32_t> take(std::size_t kind);
  void share(std::int32_t page);  // one more owner
  void give_back(std::int32_t page);
  bool shared(std::int32_t page) const;

  std::size_t page_bytes(std::size_t kind) const noexcept { return kinds_[kind].page_bytes; }
  std::size_t pages(std::size_t kind) const noexcept { return kinds_[kind].pages; }  // with owners
  std::size_t used_bytes() const noexcept;  // by pages that have owners

 private:
  struct Block {
    std::size_t kind = 0;
    std::vector<std::int32_t> owners;  // of each page; empty: no kind has the block
    std::vector<std::int32_t> free;    // pages without
  };
  struct Kind {
    std::size_t page_bytes = 0, pages = 0;
    std::set<std::size_t> open;  // its blocks that have free pages
  };
  struct Place {
    std::size_t block, page;
  };
  Place place_of(std::int32_t page) const;

  std::size_t budget_ = 0, block_bytes_ = 0;
  std::vector<Kind> kinds_;
  std::vector<Block> blocks_;
  std::set<std::size_t> free_;  // blocks
};

}  // namespace kvspan::cuda
