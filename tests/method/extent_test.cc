// SPDX-License-Identifier: Apache-2.0
// What a group knows of its positions, where the tokens that are held do not tell it: sinks that windows
// have passed, sequences that begin beyond position 0, truncation in the middle of what is encoded.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "attention/bands/bands_tokens.h"
#include "base/byte_frame.h"
#include "base/random.h"
#include "method/method_cache.h"
#include "recipe/recipe.h"
#include "tests/method/synthetic.h"

namespace kvspan {
namespace extent_test {

using testing::SyntheticText;

constexpr std::int32_t kTokens = 330;

CacheShape shape_of(std::int32_t window, std::int32_t chunk) {
  CacheShape shape = testing::synthetic_shape(2, 1);
  for (LayerShape& layer : shape.layers) {
    layer.window = window;
    layer.chunk = chunk;
  }
  return shape;
}

struct Model {
  SyntheticText text;
  std::shared_ptr<const Prepared> prepared;

  // odd: of so many tokens one has values that the calibration does not know.
  Model(const CacheShape& shape, const std::string& recipe, std::int32_t odd = kTokens)
      : text(shape, kTokens, 17) {
    const Calibration calibration = text.calibration();
    Random random(18);
    for (std::int32_t token = odd; token < kTokens; token += odd) text.make_massive(token, random);
    prepared = prepare(text.shape(), Recipe::parse(recipe).value(), &calibration).value();
  }
  std::unique_ptr<MethodCache> make() const { return std::make_unique<MethodCache>(prepared); }
  std::unique_ptr<MethodCache> copy(const MethodCache& cache) const {
    auto loaded = MethodCache::load(prepared, testing::saved(cache));
    EXPECT_TRUE(loaded) << loaded.error().message;
    return std::move(loaded).value();
  }
};

void expect_alike(const MethodCache& a, const MethodCache& b) {
  EXPECT_EQ(a.bytes().total, b.bytes().total);
  EXPECT_EQ(a.bytes().total, a.ledger()->total());
  EXPECT_EQ(a.tokens(), b.tokens());
  EXPECT_EQ(a.least_tokens(), b.least_tokens());
  EXPECT_EQ(testing::saved(a), testing::saved(b));
}

// Rows that are neither encoded nor wait, by position.
std::vector<std::int32_t> exact_rows(const MethodCache& cache, int layer) {
  const Group& group = cache.group(layer, 0);
  std::vector<std::int32_t> all;
  for (std::int32_t i = 0; i < group.settled(); ++i) all.push_back(group.list().position(i));
  return all;
}

// Also where the list is empty, and where the sink is only partly there or gone.
TEST(Extent, LoadedCachesContinueAlikeWhereverTheyWereSaved) {
  const std::array<std::array<std::int32_t, 2>, 4> forms{{{1, 0}, {40, 0}, {0, 2}, {0, 48}}};
  for (const auto& [window, chunk] : forms) {
    for (const char* recipe :
         {"bands:bits=2,anchor=32,sink=16,recent=0", "bands:bits=3,anchor=32,sink=16,recent=16,ends=int8",
          "quant:group=16,sink=32,recent=8", "turbo:sink=32,recent=0", "fd:rk=4,rv=4,tau=0.3,sink=5,recent=8"}) {
      const Model model(shape_of(window, chunk), recipe);
      for (const std::int32_t first : {0, 5}) {
        SCOPED_TRACE(fmt::format("{}, window {}, chunk {}, from {}", recipe, window, chunk, first));
        const auto cache = model.make();
        for (std::int32_t at = first; at < 130; ++at) {
          testing::run(*cache, model.text, at, 1, 1);
          if (at % 7 != 0 && at % 16 > 1 && at % 16 < 15) continue;
          const auto original = cache->fork().value();
          const auto loaded = model.copy(*cache);
          expect_alike(*loaded, *cache);
          ASSERT_EQ(testing::run(*loaded, model.text, at + 1, 70, 1), testing::run(*original, model.text, at + 1, 70, 1))
              << "saved at " << at + 1;
          expect_alike(*loaded, static_cast<const MethodCache&>(*original));
        }
      }
    }
  }
}

// The first token's values are compared with later ones long after a window has passed the token.
TEST(Extent, WindowsKeepTheSameTokensExactHoweverCallsAreSplit) {
  for (const char* ends : {"f16", "int8"}) {
    const Model model(shape_of(64, 0), fmt::format("bands:bits=5,anchor=32,sink=16,recent=0,escape=1%,ends={}", ends));
    std::vector<std::vector<std::int32_t>> exact;
    for (const std::int32_t block : {1, 7, 256}) {
      const auto cache = model.make();
      testing::run(*cache, model.text, 0, 256, block);
      exact.push_back(exact_rows(*cache, 0));
    }
    EXPECT_EQ(exact[0].size(), 1u) << "a token like the first, behind 200 encoded ones";
    EXPECT_EQ(exact[1], exact[0]) << ends;
    EXPECT_EQ(exact[2], exact[0]) << ends;
  }
}

TEST(Extent, LearntCodesContinueAfterATruncationToAnyLength) {
  for (const char* recipe : {"bands:bits=3,calib=online,learn=64,sink=16,recent=32",
                             "bands:bits=3,calib=online,learn=48,refresh=32,sink=16,recent=16,ends=int8"}) {
    const Model model(shape_of(0, 0), recipe);
    const auto filled = model.make();
    testing::run(*filled, model.text, 0, 100, 1);
    for (std::int32_t cut = 1; cut < 100; cut += 4) {
      const auto cache = filled->fork().value();
      ASSERT_TRUE(cache->truncate(cut));
      testing::run(*cache, model.text, cut, 200, 1);  // expects that each step settles
      if (::testing::Test::HasFailure()) FAIL() << recipe << " truncated to " << cut;
      const auto& group = static_cast<MethodCache&>(*cache).group(0, 0);
      EXPECT_EQ(group.extent().next, cut + 200);
      EXPECT_GT(group.extent().encoded_end, group.sink_end());
    }
  }
}

// A tile is encoded again whole, though a window has passed its escapes.
TEST(Extent, NarrowWindowsContinueAfterATruncationToAnyLength) {
  for (const auto& [window, chunk] : {std::pair(8, 0), std::pair(0, 1), std::pair(0, 25)}) {
    const Model model(shape_of(window, chunk), "bands:bits=2,anchor=32,sink=16,recent=8,escape=10%", 21);
    const auto filled = model.make();
    for (std::int32_t tokens = 0, step = 0; tokens < 280; ++step) {
      for (std::int32_t cut = filled->least_tokens(); cut < tokens; ++cut) {
        const auto cache = filled->fork().value();
        ASSERT_TRUE(cache->truncate(cut));
        testing::run(*cache, model.text, cut, 40, 40);
        if (::testing::Test::HasFailure()) {
          FAIL() << "window " << window << ", chunk " << chunk << ", " << tokens << " truncated to " << cut;
        }
      }
      const std::int32_t n = step % 4 == 0 ? 45 : 3;
      testing::run(*filled, model.text, tokens, n, n);
      tokens += n;
    }
  }
}

// One layer is ahead by a step that another did not make: what it evicted stays away, and it continues.
TEST(Extent, HalfAStepIsTakenBackAlsoWhereItEvictedTokens) {
  TeamState state;
  Team team(state, 0, 1);
  for (const char* recipe : {"bands:bits=2,anchor=32,sink=16,recent=8,escape=50%", "quant:group=16,sink=4,recent=0"}) {
    for (const std::int32_t window : {8, 40}) {
      const Model model(shape_of(window, 0), recipe);
      for (std::int32_t tokens = 90; tokens < 110; tokens += 3) {
        const auto cache = model.make();
        testing::run(*cache, model.text, 0, tokens, 1);
        ASSERT_TRUE(cache->append(0, model.text.rows(0, tokens, 90), team));
        ASSERT_TRUE(cache->settle(0, team));
        ASSERT_TRUE(cache->truncate(tokens));
        const auto loaded = model.copy(*cache);
        EXPECT_EQ(testing::run(*loaded, model.text, tokens, 80, 1), testing::run(*cache, model.text, tokens, 80, 1));
        if (::testing::Test::HasFailure()) FAIL() << recipe << ", window " << window << ", tokens " << tokens;
      }
    }
  }
}

// A step at positions of its own, with rows of the text.
void step(KvCache& cache, const SyntheticText& text, std::int32_t from, const std::vector<std::int32_t>& positions) {
  TeamState state;
  Team team(state, 0, 1);
  for (int layer = 0; layer < 2; ++layer) {
    KvRows rows = text.rows(std::size_t(layer), from, std::int32_t(positions.size()));
    rows.positions = positions;
    ASSERT_TRUE(cache.append(layer, rows, team));
    const Status settled = cache.settle(layer, team);
    ASSERT_TRUE(settled) << settled.error().message;
  }
}

TEST(Extent, TruncatedCachesAndTheirCopiesHaveTheSameLayout) {
  for (const char* recipe :
       {"full", "quant:group=16,sink=4,recent=0", "static:rk=8,rv=full,sink=4,recent=8", "turbo:sink=0,recent=0",
        "rotate:rk=4,rv=4,every=16,sink=16,recent=20", "quest:keep=64,page=4,skip=0",
        "h2o:keep=0.5+quant:group=16,sink=4,recent=8"}) {
    const Model model(shape_of(0, 0), recipe);
    const auto filled = model.make();
    std::int32_t next = 0, from = 0;
    for (std::int32_t n = 1; next < 600; n = n % 13 + 1) {
      std::vector<std::int32_t> positions;
      for (std::int32_t i = 0; i < n; ++i) positions.push_back(next++);
      step(*filled, model.text, from, positions);
      from = (from + n) % 200;
      next += n % 5 == 0 ? 21 : 0;
    }
    for (std::int32_t cut = std::max(filled->least_tokens(), 3); cut < next; cut += 17) {
      SCOPED_TRACE(fmt::format("{} truncated to {}", recipe, cut));
      const auto fork = filled->fork().value();
      auto& cache = static_cast<MethodCache&>(*fork);
      ASSERT_TRUE(cache.truncate(cut));
      const auto loaded = model.copy(cache);
      EXPECT_EQ(loaded->bytes().total, cache.bytes().total);
      for (std::int32_t at = cut; at < cut + 100; at += 20) {
        std::vector<std::int32_t> positions;
        for (std::int32_t i = 0; i < 17; ++i) positions.push_back(at + i);
        for (KvCache* each : {fork.get(), static_cast<KvCache*>(loaded.get())}) step(*each, model.text, at % 200, positions);
      }
      EXPECT_EQ(loaded->bytes().total, cache.bytes().total);
      EXPECT_EQ(testing::saved(*loaded), testing::saved(cache));
    }
  }
}

TEST(Extent, GapsAreRefusedBeforeAnythingIsTouchedWhereTilesNeedAllPositions) {
  const Model model(shape_of(0, 0), "bands:bits=2,anchor=32,sink=16,recent=0");
  TeamState state;
  Team team(state, 0, 1);
  const auto cache = model.make();
  testing::run(*cache, model.text, 0, 20, 20);
  const auto before = testing::saved(*cache);
  const Status gap = cache->append(0, model.text.rows(0, 30, 10), team);
  ASSERT_FALSE(gap);
  EXPECT_NE(gap.error().message.find("consecutive positions: got 10 rows at 30 to 39, expected 20 to 29"), std::string::npos)
      << gap.error().message;
  KvRows rows = model.text.rows(0, 20, 2);
  const std::array<std::int32_t, 2> positions{20, 22};
  rows.positions = positions;
  EXPECT_FALSE(cache->append(0, rows, team));
  EXPECT_EQ(testing::saved(*cache), before);
}

void fix_checksum(std::vector<std::byte>& bytes) {
  const std::uint64_t sum = crc64(std::span(bytes).first(bytes.size() - 8));
  std::memcpy(bytes.data() + bytes.size() - 8, &sum, sizeof(sum));
}

// A forged extent would make every later settle fail, or the next tile overlap the last.
TEST(Extent, ForgedPositionsAreRefused) {
  const Model model(shape_of(0, 0), "bands:bits=2,anchor=32,sink=16,recent=8");
  const auto cache = model.make();
  testing::run(*cache, model.text, 0, 100, 50);
  const std::vector<std::byte> bytes = testing::saved(*cache);
  const Extent& extent = cache->group(0, 0).extent();
  const std::array<std::int32_t, 5> fields{extent.first, extent.encoded_end, extent.settled_end, extent.next,
                                           extent.evicted_end};
  ASSERT_EQ(fields, (std::array<std::int32_t, 5>{0, 80, 80, 100, 0}));
  const auto* begin = reinterpret_cast<const std::byte*>(fields.data());
  const auto found = std::search(bytes.begin(), bytes.end(), begin, begin + sizeof(fields));
  ASSERT_NE(found, bytes.end());
  for (std::size_t field = 0; field < 4; ++field) {  // any position may be evicted up to
    for (const std::int32_t change : {-16, -1, 1, 16, 1 << 30}) {
      if (field == 2 && (change == 1 || change == 16)) continue;  // rows that wait may be settled
      auto forged = bytes;
      const std::int32_t value = fields[field] + change;
      std::memcpy(forged.data() + (found - bytes.begin()) + 4 * std::ptrdiff_t(field), &value, sizeof(value));
      fix_checksum(forged);
      const auto loaded = MethodCache::load(model.prepared, forged);
      EXPECT_FALSE(loaded) << "field " << field << ": " << value;
    }
  }
}

}  // namespace extent_test
}  // namespace kvspan
