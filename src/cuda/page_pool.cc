// SPDX-License-Identifier: Apache-2.0
#include "cuda/page_pool.h"

#include <algorithm>

#include "base/expect.h"
#include "base/fail.h"

namespace kvspan::cuda {
namespace {

// A block is at most so many of the largest page, and at most this part of the budget.
constexpr std::size_t kMostLargest = 16, kBudgetPart = 16;

}  // namespace

std::size_t pool_bytes_for(std::span<const PageNeed> needs, std::size_t block_bytes) {
  std::size_t blocks = 0;
  for (const PageNeed& need : needs) {
    if (need.page_bytes == 0) continue;
    const std::size_t each = block_bytes / need.page_bytes;
    blocks += (need.pages + each - 1) / each;
  }
  return blocks * block_bytes;
}

std::size_t best_block_bytes(std::span<const PageNeed> needs, std::size_t budget_bytes) {
  std::size_t largest = 0, all = 0;
  for (const PageNeed& need : needs) {
    largest = std::max(largest, need.page_bytes);
    all += need.page_bytes * need.pages;
  }
  std::vector<PageNeed> fit(needs.begin(), needs.end());
  if (all > budget_bytes) {
    const double share = static_cast<double>(budget_bytes) / static_cast<double>(all);
    for (PageNeed& need : fit) {
      need.pages = static_cast<std::size_t>(static_cast<double>(need.pages) * share) + 1;
    }
  }
  const std::size_t most =
      std::clamp(std::min(all, budget_bytes) / kBudgetPart, largest, kMostLargest * largest);
  std::size_t best = largest, least = largest > 0 ? pool_bytes_for(fit, largest) : 0;
  for (const PageNeed& need : fit) {
    if (need.page_bytes == 0) continue;
    // Whole pages of some kind: any other size loses something of every kind.
    for (std::size_t block = (largest + need.page_bytes - 1) / need.page_bytes * need.page_bytes;
         block <= most; block += need.page_bytes) {
      const std::size_t bytes = pool_bytes_for(fit, block);
      if (bytes > least || (bytes == least && block >= best)) continue;
      best = block;
      least = bytes;
    }
  }
  return best;
}

PagePool::PagePool(std::size_t budget_bytes, std::size_t block_bytes,
                   std::vector<std::size_t> page_bytes)
    : budget_(budget_bytes), block_bytes_(block_bytes) {
  for (const std::size_t bytes : page_bytes) {
    KVSPAN_EXPECT(bytes <= block_bytes && bytes % kPageUnit == 0, "whole units, within a block");
    kinds_.push_back({.page_bytes = bytes, .pages = 0, .open = {}});
  }
  blocks_.resize(block_bytes > 0 ? budget_bytes / block_bytes : 0);
  for (std::size_t i = 0; i < blocks_.size(); ++i) free_.insert(free_.end(), i);
}

PagePool::Place PagePool::place_of(std::int32_t page) const {
  const std::size_t at = static_cast<std::size_t>(page) * kPageUnit, block = at / block_bytes_;
  return {block, at % block_bytes_ / kinds_[blocks_[block].kind].page_bytes};
}

Result<std::int32_t> PagePool::take(std::size_t kind) {
  Kind& of = kinds_[kind];
  if (of.open.empty()) {
    if (of.page_bytes == 0 || free_.empty()) {
      return fail(
          ErrorCode::kOutOfBudget,
          "the device cache's budget of {} bytes is spent: pages in use take {}, and none of "
          "{} is left",
          budget_, used_bytes(), of.page_bytes);
    }
    const std::size_t index = *free_.begin();
    free_.erase(free_.begin());
    Block& block = blocks_[index];
    const std::size_t pages = block_bytes_ / of.page_bytes;
    block.kind = kind;
    block.owners.assign(pages, 0);
    for (std::size_t i = pages; i-- > 0;) block.free.push_back(static_cast<std::int32_t>(i));
    of.open.insert(index);
  }
  // The first of its blocks, so that the last ones become free.
  const std::size_t index = *of.open.begin();
  Block& block = blocks_[index];
  const auto page = static_cast<std::size_t>(block.free.back());
  block.free.pop_back();
  block.owners[page] = 1;
  if (block.free.empty()) of.open.erase(index);
  ++of.pages;
  return static_cast<std::int32_t>((index * block_bytes_ + page * of.page_bytes) / kPageUnit);
}

void PagePool::share(std::int32_t page) {
  const Place at = place_of(page);
  ++blocks_[at.block].owners[at.page];
}

void PagePool::give_back(std::int32_t page) {
  const Place at = place_of(page);
  Block& block = blocks_[at.block];
  Kind& of = kinds_[block.kind];
  KVSPAN_EXPECT(at.page < block.owners.size() && block.owners[at.page] > 0,
                "a page that somebody has");
  if (--block.owners[at.page] > 0) return;
  --of.pages;
  block.free.push_back(static_cast<std::int32_t>(at.page));
  of.open.insert(at.block);
  if (block.free.size() < block.owners.size()) return;
  of.open.erase(at.block);
  block.owners.clear();
  block.free.clear();
  free_.insert(at.block);
}

bool PagePool::shared(std::int32_t page) const {
  const Place at = place_of(page);
  return blocks_[at.block].owners[at.page] > 1;
}

std::size_t PagePool::used_bytes() const noexcept {
  std::size_t sum = 0;
  for (const Kind& kind : kinds_) sum += kind.pages * kind.page_bytes;
  return sum;
}

}  // namespace kvspan::cuda
