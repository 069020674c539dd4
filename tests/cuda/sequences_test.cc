// SPDX-License-Identifier: Apache-2.0
// Which pages sequences hold while layers make their steps; no device is needed.
#include "cuda/sequences.h"

#include <gtest/gtest.h>

#include <map>
#include <tuple>

#include "base/random.h"

namespace kvspan::cuda::sequences_test {
namespace {

constexpr Ends kEnds{32, 48};

// Steps as a device cache makes them, and a record of what each page was last written with: the
// sequence, layer and position of every token.
class Steps {
 public:
  Steps(std::vector<std::int32_t> windows, bool coded, std::int32_t sequences,
        std::int32_t max_tokens)
      : windows_(std::move(windows)), coded_(coded) {
    std::vector<LayerPages> layers;
    for (const std::int32_t window : windows_) {
      layers.push_back(
          {window, coded, coded ? std::size_t{3} * kPageUnit : 0, std::size_t{5} * kPageUnit});
    }
    const SequenceLimits limits{sequences, max_tokens, coded ? kEnds : Ends{}};
    const std::vector<PageClass> classes = page_classes(layers, max_tokens);
    const std::vector<PageNeed> needs = page_needs(classes, limits.ends, max_tokens, sequences);
    const std::size_t block = best_block_bytes(needs);
    std::vector<std::size_t> sizes;
    for (const PageNeed& need : needs) sizes.push_back(need.page_bytes);
    // No more than what is said to be needed.
    all = Sequences(limits, classes, PagePool(pool_bytes_for(needs, block), block, sizes), nullptr,
                    nullptr);
  }

  void append(std::int32_t number, std::size_t layer, std::int32_t n) {
    Sequence& s = *all.find(number).value();
    const std::int32_t first = s.tokens[layer];
    const Status owned = all.own(PageKind::kRows, s, layer, first, first + n);
    ASSERT_TRUE(owned) << owned.error().message;
    s.tokens[layer] += n;
    for (std::int32_t t = first; t < first + n; ++t) write(PageKind::kRows, s, layer, t);
  }
  // Everything that the last n positions see is still there.
  void attend(std::int32_t number, std::size_t layer, std::int32_t n) {
    const Sequence& s = *all.find(number).value();
    const std::int32_t first = s.tokens[layer] - n, window = windows_[layer];
    for (std::int32_t t = window > 0 ? std::max(0, first - window + 1) : 0; t < s.tokens[layer];
         ++t) {
      const bool coded = t >= kEnds.sink && t < s.coded[layer];
      const PageKind kind = coded ? PageKind::kCodes : PageKind::kRows;
      ASSERT_GE(t, all.passed(s, layer));
      ASSERT_GE(all.page_of(kind, s, layer, t), 0) << "layer " << layer << " position " << t;
      ASSERT_EQ(written_[place(kind, s, layer, t)], std::tuple(number, layer, t));
    }
  }
  void settle(std::int32_t number, std::size_t layer) {
    Sequence& s = *all.find(number).value();
    const std::int32_t first = std::max(s.coded[layer], kEnds.sink);
    const std::int32_t n = std::max(0, (s.tokens[layer] - first - kEnds.recent) / 16 * 16);
    if (coded_ && n > 0) {
      const Status owned = all.own(PageKind::kCodes, s, layer, first, first + n);
      ASSERT_TRUE(owned) << owned.error().message;
      s.coded[layer] = first + n;
      for (std::int32_t t = first; t < first + n; ++t) write(PageKind::kCodes, s, layer, t);
    }
    all.settled(s, layer);
  }
  // Tokens that come from elsewhere; those before `passed` are not there.
  void load(std::int32_t number, std::size_t layer, std::int32_t n, std::int32_t passed) {
    Sequence& s = *all.find(number).value();
    const std::int32_t coded = coded_ ? kEnds.sink + (n - kEnds.sink - kEnds.recent) / 16 * 16 : 0;
    for (std::int32_t t = passed; t < n; ++t) {
      const PageKind kind = t >= kEnds.sink && t < coded ? PageKind::kCodes : PageKind::kRows;
      ASSERT_TRUE(all.own(kind, s, layer, t, t + 1));
      write(kind, s, layer, t);
    }
    s.tokens[layer] = n;
    s.coded[layer] = coded;
    all.loaded(s, layer, passed);
  }
  void step(std::int32_t number, std::int32_t n) {
    for (std::size_t l = 0; l < windows_.size(); ++l) {
      ASSERT_NO_FATAL_FAILURE(append(number, l, n));
      ASSERT_NO_FATAL_FAILURE(attend(number, l, n));
      ASSERT_NO_FATAL_FAILURE(settle(number, l));
    }
  }
  std::size_t bytes(std::int32_t number) {
    const Sequence& s = *all.find(number).value();
    return all.bytes(PageKind::kCodes, s) + all.bytes(PageKind::kRows, s);
  }
  Sequence& sequence(std::int32_t number) { return *all.find(number).value(); }

  Sequences all;

 private:
  using Place = std::tuple<std::int32_t, std::size_t, std::int32_t>;  // page, layer, slot
  Place place(PageKind kind, const Sequence& s, std::size_t layer, std::int32_t t) const {
    return {all.page_of(kind, s, layer, t), layer, t % page_tokens(kind)};
  }
  void write(PageKind kind, const Sequence& s, std::size_t layer, std::int32_t t) {
    written_[place(kind, s, layer, t)] = {s.number, layer, t};
  }

  std::vector<std::int32_t> windows_;
  bool coded_;
  // Pages of two kinds or classes that begin at one place share it here too: that is an error
  // found.
  std::map<Place, std::tuple<std::int32_t, std::size_t, std::int32_t>> written_;
};

// Sequences of all lengths that come and go in a pool of what is needed; each step reads back all
// it sees.
void run(bool coded) {
  const std::int32_t max_tokens = 2500;
  Steps steps({0, 100, 300, 100}, coded, 3, max_tokens);
  Random random(7);
  std::vector<std::int32_t> longest(3, 0);  // that each has been
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(steps.all.add());
  for (int round = 0; round < 200; ++round) {
    const auto s = static_cast<std::int32_t>(random.below(3));
    std::int32_t& most = longest[static_cast<std::size_t>(s)];
    const std::int32_t room = max_tokens - steps.sequence(s).tokens[0];
    if (room == 0) {
      steps.all.remove(steps.sequence(s));
      ASSERT_EQ(steps.all.add().value(), s);
      most = 0;
      continue;
    }
    const std::int32_t lengths[] = {1, 17, 200, kStepRows};
    ASSERT_NO_FATAL_FAILURE(steps.step(s, std::min(room, lengths[random.below(4)])))
        << "round " << round;
    Sequence& cut = steps.sequence(s);
    most = std::max(most, cut.tokens[0]);
    if (random.below(4) > 0) continue;
    // Cut as far back as it goes.
    const std::int32_t least = steps.all.least_tokens(cut);
    ASSERT_LE(least, std::max(1, most - (coded ? kEnds.recent : kCutTokens)));
    steps.all.cut(cut, std::min(least, cut.tokens[0]));
  }
  // All of them to their ends, side by side.
  for (bool more = true; more;) {
    more = false;
    for (std::int32_t s = 0; s < 3; ++s) {
      const std::int32_t room = max_tokens - steps.sequence(s).tokens[0];
      if (room > 0) {
        ASSERT_NO_FATAL_FAILURE(steps.step(s, std::min(room, kStepRows)));
      }
      more = more || room > kStepRows;
    }
  }
}

TEST(Sequences, EverythingThatIsSeenIsHeld) {
  run(true);
  run(false);
}

TEST(Sequences, PagesThatWindowsHavePassedAreGivenBack) {
  Steps steps({0, 100, 100}, true, 2, 4096);
  const std::int32_t a = steps.all.add().value();
  ASSERT_NO_FATAL_FAILURE(steps.step(a, 512));
  for (int i = 0; i < 5; ++i) ASSERT_NO_FATAL_FAILURE(steps.step(a, 512));
  // 3,072 tokens, all but the last 48 coded: 12 pages of codes without a window; with it the one of
  // 2,925 to 3,023. Rows: the sink's page where there is no window, and that of 3,024 to 3,071.
  const Sequence& s = steps.sequence(a);
  ASSERT_EQ(s.coded, (std::vector<std::int32_t>{3024, 3024, 3024}));
  EXPECT_EQ(steps.all.passed(s, 0), 0);
  EXPECT_EQ(steps.all.passed(s, 1), 3024 - 100 + 1);
  EXPECT_EQ(steps.all.bytes(PageKind::kCodes, s), std::size_t{12 * 3 + 6} * kPageUnit);
  EXPECT_EQ(steps.all.bytes(PageKind::kRows, s), std::size_t{2 * 5 + 10} * kPageUnit);
  EXPECT_EQ(steps.all.pool().used_bytes(), steps.bytes(a));
  // Whatever it is cut at, it goes on.
  EXPECT_EQ(steps.all.least_tokens(s), 3024);
  steps.all.cut(steps.sequence(a), 3024);
  ASSERT_NO_FATAL_FAILURE(steps.step(a, 1));
  steps.all.remove(steps.sequence(a));
  EXPECT_EQ(steps.all.pool().used_bytes(), 0u);
}

// All layers have to be done with a page.
TEST(Sequences, APageWaitsForTheLastLayerOfItsClass) {
  Steps steps({100, 100}, true, 1, 4096);
  const std::int32_t a = steps.all.add().value();
  ASSERT_NO_FATAL_FAILURE(steps.step(a, 512));
  const std::size_t before = steps.bytes(a);
  for (std::size_t l : {0, 1}) ASSERT_NO_FATAL_FAILURE(steps.append(a, l, 512));
  ASSERT_NO_FATAL_FAILURE(steps.attend(a, 0, 512));
  ASSERT_NO_FATAL_FAILURE(steps.settle(a, 0));
  EXPECT_GT(steps.bytes(a), before);
  EXPECT_EQ(steps.all.passed(steps.sequence(a), 0), 464 - 100 + 1);
  ASSERT_NO_FATAL_FAILURE(steps.attend(a, 1, 512));
  ASSERT_NO_FATAL_FAILURE(steps.settle(a, 1));
  EXPECT_EQ(steps.all.passed(steps.sequence(a), 0), 976 - 100 + 1);
  EXPECT_EQ(steps.bytes(a), before);
}

TEST(Sequences, WithoutCodesTheLastTokensCanBeTakenBack) {
  Steps steps({100, 0}, false, 1, 4096);
  const std::int32_t a = steps.all.add().value();
  ASSERT_NO_FATAL_FAILURE(steps.step(a, 163));
  EXPECT_EQ(steps.all.least_tokens(steps.sequence(a)), 1);  // nothing has been passed
  ASSERT_NO_FATAL_FAILURE(steps.step(a, 1000));
  EXPECT_EQ(steps.all.least_tokens(steps.sequence(a)), 1163 - kCutTokens);
  steps.all.cut(steps.sequence(a), 1163 - kCutTokens);
  EXPECT_EQ(steps.all.least_tokens(steps.sequence(a)), 1163 - kCutTokens);
  ASSERT_NO_FATAL_FAILURE(steps.step(a, 3));
}

// A page goes back when the window of both has passed it.
TEST(Sequences, ForksShareWhatBothStillSee) {
  Steps steps({100}, true, 2, 4096);
  const std::int32_t a = steps.all.add().value();
  ASSERT_NO_FATAL_FAILURE(steps.step(a, 400));
  const std::size_t alone = steps.bytes(a);
  const std::int32_t b = steps.all.fork(a).value();
  EXPECT_EQ(steps.all.pool().used_bytes(), alone);
  EXPECT_EQ(steps.bytes(b), alone);
  EXPECT_EQ(steps.all.passed(steps.sequence(b), 0), steps.all.passed(steps.sequence(a), 0));
  Sequence& s = steps.sequence(a);
  for (int i = 0; i < 4; ++i) {
    ASSERT_NO_FATAL_FAILURE(steps.append(a, 0, 300));
    ASSERT_NO_FATAL_FAILURE(steps.settle(a, 0));
  }
  EXPECT_GT(steps.all.passed(s, 0), 1400);
  EXPECT_EQ(steps.bytes(b), alone);
  EXPECT_EQ(steps.all.pool().used_bytes(), steps.bytes(a) + steps.bytes(b));  // nothing in common
  steps.all.remove(s);
  EXPECT_EQ(steps.all.pool().used_bytes(), alone);
}

TEST(Sequences, LoadedOnesGoOn) {
  for (const bool coded : {false, true}) {
    Steps steps({0, 100, 100}, coded, 2, 2500);
    const std::int32_t a = steps.all.add().value();
    // A window's layers hold no more than the next query sees.
    steps.load(a, 0, 700, 0);
    steps.load(a, 1, 700, 592);
    steps.load(a, 2, 700, 601);
    EXPECT_EQ(steps.all.passed(steps.sequence(a), 0), 0);
    EXPECT_EQ(steps.all.passed(steps.sequence(a), 1), 601);
    EXPECT_EQ(steps.all.least_tokens(steps.sequence(a)), 700);
    const std::size_t loaded = steps.bytes(a);
    for (const std::int32_t n : {1, 30, 200, 1, 500, 7}) steps.step(a, n);
    // Another that has come the same way by itself holds as much.
    const std::int32_t b = steps.all.add().value();
    for (const std::int32_t n : {500, 200, 231, 501, 7}) steps.step(b, n);
    EXPECT_EQ(steps.sequence(a).tokens, steps.sequence(b).tokens);
    EXPECT_EQ(steps.bytes(a), steps.bytes(b));
    EXPECT_GT(steps.bytes(a), loaded);
    steps.all.remove(steps.sequence(a));
    steps.all.remove(steps.sequence(b));
    EXPECT_EQ(steps.all.pool().used_bytes(), 0u);
  }
}

}  // namespace
}  // namespace kvspan::cuda::sequences_test
