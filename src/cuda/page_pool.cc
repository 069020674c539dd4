// SPDX-License-Identifier: Apache-2.0
#include "cuda/page_pool.h"

#include "base/expect.h"
#include "base/fail.h"

namespace kvspan::cuda {

PagePool::PagePool(std::size_t budget_bytes, std::size_t code_page_bytes,
                   std::size_t row_page_bytes)
    : budget_(budget_bytes) {
  codes_.bytes = code_page_bytes;
  rows_.bytes = row_page_bytes;
}

std::size_t PagePool::untouched() const noexcept {
  return budget_ - codes_.owners.size() * codes_.bytes - rows_.owners.size() * rows_.bytes;
}

Result<std::int32_t> PagePool::take(PageKind kind) {
  Side& from = side(kind);
  if (!from.free.empty()) {
    const std::int32_t page = from.free.back();
    from.free.pop_back();
    from.owners[static_cast<std::size_t>(page)] = 1;
    return page;
  }
  if (from.bytes == 0 || untouched() < from.bytes) {
    return fail(ErrorCode::kOutOfBudget,
                "the device cache's budget of {} bytes is spent: {} pages of codes and {} of rows",
                budget_, pages(PageKind::kCodes), pages(PageKind::kRows));
  }
  from.owners.push_back(1);
  return static_cast<std::int32_t>(from.owners.size()) - 1;
}

void PagePool::share(PageKind kind, std::int32_t page) {
  ++side(kind).owners[static_cast<std::size_t>(page)];
}

void PagePool::give_back(PageKind kind, std::int32_t page) {
  Side& to = side(kind);
  std::int32_t& owners = to.owners[static_cast<std::size_t>(page)];
  KVSPAN_EXPECT(owners > 0, "a page that somebody has");
  if (--owners == 0) to.free.push_back(page);
}

bool PagePool::shared(PageKind kind, std::int32_t page) const {
  return side(kind).owners[static_cast<std::size_t>(page)] > 1;
}

std::size_t PagePool::pages(PageKind kind) const noexcept {
  return side(kind).owners.size() - side(kind).free.size();
}

std::size_t PagePool::free_bytes(PageKind kind) const noexcept {
  const Side& of = side(kind);
  const std::size_t fresh = of.bytes > 0 ? untouched() / of.bytes * of.bytes : 0;
  return of.free.size() * of.bytes + fresh;
}

}  // namespace kvspan::cuda
