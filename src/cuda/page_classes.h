// SPDX-License-Identifier: Apache-2.0
// Which layers of a model share pages: those with the same window. A page of such a class holds its
// positions of all layers of the class, and goes back to the pool when no query to come sees one of
// them. Plain arithmetic; no device is needed to test it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cuda/page_pool.h"

namespace kvspan::cuda {

enum class PageKind : std::uint8_t { kCodes, kRows };
inline constexpr PageKind kPageKinds[] = {PageKind::kCodes, PageKind::kRows};

constexpr std::int32_t page_tokens(PageKind kind) {
  return kind == PageKind::kCodes ? kPageTokens : kRowPageTokens;
}

// Rows that a step may add before any of them is coded, where memory is counted.
inline constexpr std::int32_t kStepRows = 512;
// Tokens at the end that a layer without codes can always be cut by; one with codes, by those that
// are not coded.
inline constexpr std::int32_t kCutTokens = 64;

// What a layer is to its pages.
struct LayerPages {
  std::int32_t window = 0;  // 0: none
  bool coded = false;
  std::size_t code_bytes = 0, row_bytes = 0;  // of a page
};

struct PageClass {
  std::int32_t window = 0;  // 0: all positions stay
  bool coded = false;
  std::vector<std::size_t> layers;
  std::size_t code_bytes = 0, row_bytes = 0;  // of a page; multiples of kPageUnit

  std::size_t bytes(PageKind kind) const noexcept {
    return kind == PageKind::kCodes ? code_bytes : row_bytes;
  }
};

// In the order of their first layers. A window that no sequence of max_tokens leaves is none.
std::vector<PageClass> page_classes(std::span<const LayerPages> layers, std::int32_t max_tokens);

// Full-rank tokens at both ends of what is coded.
struct Ends {
  std::int32_t sink = 0, recent = 0;
};

// Pages that one sequence has at most, in steps of up to kStepRows tokens.
std::int32_t most_pages(const PageClass& of, PageKind kind, const Ends& ends,
                        std::int32_t max_tokens);
// The same of all sequences: codes and rows of the first class, of the second, and so on.
std::vector<PageNeed> page_needs(std::span<const PageClass> classes, const Ends& ends,
                                 std::int32_t max_tokens, std::int32_t sequences);

}  // namespace kvspan::cuda
