// SPDX-License-Identifier: Apache-2.0
#include "cuda/page_classes.h"

#include <gtest/gtest.h>

#include <set>

namespace kvspan::cuda::page_classes_test {
namespace {

TEST(PageClasses, LayersOfOneWindowShareTheirPages) {
  const LayerPages layers[] = {{512, true, 1000, 2000}, {0, true, 100, 300},
                               {512, true, 1000, 2000}, {64, true, 1, 1},
                               {4096, true, 100, 300},  {512, false, 0, 2000}};
  const std::vector<PageClass> classes = page_classes(layers, 4096);
  ASSERT_EQ(classes.size(), 4u);
  EXPECT_EQ(classes[0].window, 512);
  EXPECT_EQ(classes[0].layers, (std::vector<std::size_t>{0, 2}));
  EXPECT_EQ(classes[0].code_bytes, 2048u);  // whole units
  EXPECT_EQ(classes[0].row_bytes, 4096u);
  // Sequences of 4,096 tokens never leave a window of as many.
  EXPECT_EQ(classes[1].window, 0);
  EXPECT_EQ(classes[1].layers, (std::vector<std::size_t>{1, 4}));
  EXPECT_EQ(classes[2].window, 64);
  // Rows of a layer that codes nothing stay, others' need not.
  EXPECT_FALSE(classes[3].coded);
  EXPECT_EQ(classes[3].window, 512);
  EXPECT_EQ(page_classes(layers, 4097).size(), 5u);
}

// The most pages that positions lie in, over steps of up to kStepRows tokens, found by trying.
// range: adds the positions that are held with so many tokens before and after a step.
template <class Range>
std::int32_t most_by_trying(PageKind kind, std::int32_t max_tokens, Range range) {
  std::size_t most = 0;
  for (std::int32_t tokens = 0; tokens < max_tokens; ++tokens) {
    for (const std::int32_t step : {1, 15, 16, 100, kStepRows}) {
      const std::int32_t after = std::min(tokens + step, max_tokens);
      std::set<std::int32_t> pages;
      range(tokens, after, [&](std::int32_t from, std::int32_t to) {
        const std::int32_t first = std::max(from, 0) / page_tokens(kind);
        for (std::int32_t i = first; i * page_tokens(kind) < to; ++i) pages.insert(i);
      });
      most = std::max(most, pages.size());
    }
  }
  return static_cast<std::int32_t>(most);
}

TEST(PageClasses, NeedsAreWhatStepsCanHold) {
  const Ends ends{32, 48};
  const std::int32_t max_tokens = 3000;
  const auto coded_of = [&](std::int32_t tokens) {
    return tokens < 32 + 48 + 16 ? 0 : 32 + (tokens - 32 - 48) / 16 * 16;
  };
  for (const std::int32_t window : {0, 20, 300, 512, 2999}) {
    SCOPED_TRACE(window);
    const PageClass coded{.window = window, .coded = true, .layers = {0}};
    const auto codes = most_by_trying(
        PageKind::kCodes, max_tokens, [&](std::int32_t before, std::int32_t after, auto add) {
          add(window > 0 ? std::max(32, coded_of(before) - window + 1) : 32, coded_of(after));
        });
    EXPECT_GE(most_pages(coded, PageKind::kCodes, ends, max_tokens), codes);
    EXPECT_LE(most_pages(coded, PageKind::kCodes, ends, max_tokens), codes + 1);
    const auto rows = most_by_trying(PageKind::kRows, max_tokens,
                                     [&](std::int32_t before, std::int32_t after, auto add) {
                                       if (window == 0 || coded_of(before) - window + 1 < 32)
                                         add(0, 32);
                                       add(coded_of(before), after);
                                     });
    EXPECT_GE(most_pages(coded, PageKind::kRows, ends, max_tokens), rows);
    EXPECT_LE(most_pages(coded, PageKind::kRows, ends, max_tokens), rows + 1);
    const PageClass full{.window = window, .coded = false, .layers = {0}};
    const auto all = most_by_trying(PageKind::kRows, max_tokens,
                                    [&](std::int32_t before, std::int32_t after, auto add) {
                                      add(window > 0 ? before - kCutTokens - window + 1 : 0, after);
                                    });
    EXPECT_EQ(most_pages(full, PageKind::kRows, ends, max_tokens), all);
    EXPECT_EQ(most_pages(full, PageKind::kCodes, ends, max_tokens), 0);
  }
}

// Three layers without a window and fifteen with one of 512, 8,192 tokens.
TEST(PageClasses, WindowsNeedLittle) {
  std::vector<LayerPages> layers(18, {512, true, 256 * kPageUnit, 64 * kPageUnit});
  for (const std::size_t l : {5, 11, 17}) layers[l].window = 0;
  const std::vector<PageClass> classes = page_classes(layers, 8192);
  const std::vector<PageNeed> needs = page_needs(classes, {32, 64}, 8192, 2);
  ASSERT_EQ(needs.size(), 4u);
  EXPECT_EQ(needs[0].page_bytes, std::size_t{15} * 256 * kPageUnit);
  EXPECT_EQ(needs[0].pages, std::size_t{2} * 6);
  EXPECT_EQ(needs[2].page_bytes, std::size_t{3} * 256 * kPageUnit);
  EXPECT_EQ(needs[2].pages, std::size_t{2} * 32);
  EXPECT_EQ(needs[1].pages, needs[3].pages);
}

}  // namespace
}  // namespace kvspan::cuda::page_classes_test
