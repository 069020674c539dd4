// SPDX-License-Identifier: Apache-2.0
#include "cuda/page_classes.h"

#include <algorithm>

namespace kvspan::cuda {
namespace {

// Tokens are coded 16 at a time: so many may wait beyond the recent ones.
constexpr std::int32_t kWaiting = 15;

std::size_t whole_units(std::size_t bytes) {
  return (bytes + kPageUnit - 1) / kPageUnit * kPageUnit;
}

std::int32_t pages_from_zero(std::int32_t tokens, std::int32_t page) {
  return (tokens + page - 1) / page;
}

// That so many positions side by side lie in at most, wherever they begin.
std::int32_t pages_anywhere(std::int32_t tokens, std::int32_t page) {
  return tokens > 0 ? (tokens + page - 2) / page + 1 : 0;
}

}  // namespace

std::vector<PageClass> page_classes(std::span<const LayerPages> layers, std::int32_t max_tokens) {
  std::vector<PageClass> classes;
  for (std::size_t l = 0; l < layers.size(); ++l) {
    const LayerPages& layer = layers[l];
    const std::int32_t window = layer.window < max_tokens ? layer.window : 0;
    auto found = std::find_if(classes.begin(), classes.end(), [&](const PageClass& of) {
      return of.window == window && of.coded == layer.coded;
    });
    if (found == classes.end()) {
      found = classes.insert(found, {.window = window, .coded = layer.coded, .layers = {}});
    }
    found->layers.push_back(l);
    found->code_bytes += layer.code_bytes;
    found->row_bytes += layer.row_bytes;
  }
  for (PageClass& of : classes) {
    of.code_bytes = whole_units(of.code_bytes);
    of.row_bytes = whole_units(of.row_bytes);
  }
  return classes;
}

std::int32_t most_pages(const PageClass& of, PageKind kind, const Ends& ends,
                        std::int32_t max_tokens) {
  const std::int32_t page = page_tokens(kind), all = pages_from_zero(max_tokens, page);
  if (kind == PageKind::kCodes) {
    if (!of.coded) return 0;
    // What a query at the first token that is not coded sees, and what a step adds.
    return of.window > 0 ? std::min(all, pages_anywhere(of.window - 1 + kStepRows + kWaiting, page))
                         : all;
  }
  if (of.coded) {
    return std::min(all, pages_from_zero(ends.sink, page) +
                             pages_anywhere(ends.recent + kWaiting + kStepRows, page));
  }
  return of.window > 0 ? std::min(all, pages_anywhere(of.window - 1 + kCutTokens + kStepRows, page))
                       : all;
}

std::vector<PageNeed> page_needs(std::span<const PageClass> classes, const Ends& ends,
                                 std::int32_t max_tokens, std::int32_t sequences) {
  std::vector<PageNeed> needs;
  for (const PageClass& of : classes) {
    for (const PageKind kind : kPageKinds) {
      needs.push_back(
          {of.bytes(kind), static_cast<std::size_t>(most_pages(of, kind, ends, max_tokens)) *
                               static_cast<std::size_t>(sequences)});
    }
  }
  return needs;
}

}  // namespace kvspan::cuda
