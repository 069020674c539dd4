// SPDX-License-Identifier: Apache-2.0
// Saving and loading whole caches: what is loaded goes on bit for bit, whatever the recipe; bytes
// that are truncated, damaged or forged are refused with what and where, or are harmless.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/byte_frame.h"
#include "base/random.h"
#include "kvspan/cache.h"
#include "tests/method/recipes.h"
#include "tests/method/synthetic.h"

namespace kvspan {
namespace persist_test {

using testing::saved;
using testing::SuiteRecipe;
using testing::SyntheticText;

constexpr std::int32_t kTokens = 260;

const SyntheticText& text() {
  static const SyntheticText text(testing::synthetic_shape(), kTokens, 7);
  return text;
}

CacheFactory factory_of(const SyntheticText& from, const std::string& recipe) {
  const Calibration calibration = from.calibration();
  auto factory = CacheFactory::create(from.shape(), recipe, &calibration);
  EXPECT_TRUE(factory) << recipe << ": " << (factory ? "" : factory.error().message);
  return std::move(factory).value();
}

class Persist : public ::testing::TestWithParam<SuiteRecipe> {};

TEST_P(Persist, LoadedCachesGoOnBitForBit) {
  const CacheFactory factory = factory_of(text(), GetParam().text);
  for (const std::int32_t block : {1, 50}) {
    const auto cache = factory.make();
    testing::run(*cache, text(), 0, 200, block);
    const std::vector<std::byte> bytes = saved(*cache);
    auto loaded = factory.load(bytes);
    ASSERT_TRUE(loaded) << loaded.error().message;
    EXPECT_EQ(saved(**loaded), bytes);
    EXPECT_EQ((*loaded)->tokens(), cache->tokens());
    EXPECT_EQ((*loaded)->bytes().total, cache->bytes().total);
    EXPECT_EQ(testing::run(**loaded, text(), 200, 60, 1), testing::run(*cache, text(), 200, 60, 1));
    EXPECT_EQ((*loaded)->bytes().total, cache->bytes().total);
    EXPECT_EQ(saved(**loaded), saved(*cache));
  }
}

// Attention received but not settled yet is part of a cache, for forks too.
TEST_P(Persist, SavesInTheMiddleOfAStep) {
  const CacheFactory factory = factory_of(text(), GetParam().text);
  const auto cache = factory.make();
  testing::run(*cache, text(), 0, 150, 50);
  TeamState state;
  Team team(state, 0, 1);
  const auto scratch = make_attention_scratch();
  std::vector<float> out(4 * 16);
  for (int layer = 0; layer < 2; ++layer) {
    const auto l = std::size_t(layer);
    ASSERT_TRUE(cache->append(layer, text().rows(l, 150, 1), team));
    ASSERT_TRUE(
        cache->attend(layer, text().queries(l, 150, 1), {out.data(), {1, 4, 16}}, *scratch, team));
  }
  auto loaded = factory.load(saved(*cache));
  ASSERT_TRUE(loaded) << loaded.error().message;
  auto fork = cache->fork();
  ASSERT_TRUE(fork);
  for (KvCache* each : {cache.get(), loaded->get(), fork->get()}) {
    for (int layer = 0; layer < 2; ++layer) ASSERT_TRUE(each->settle(layer, team));
  }
  EXPECT_EQ(saved(**loaded), saved(*cache));
  EXPECT_EQ(saved(**fork), saved(*cache));
}

INSTANTIATE_TEST_SUITE_P(Recipes, Persist, ::testing::ValuesIn(testing::suite_recipes()),
                         testing::recipe_name);

// Small caches in which every kind of state occurs.
const char* const kSmall[] = {
    "full",
    "static:rk=3,rv=2,sink=2,recent=4",
    "fd:rk=3,rv=3,first=full,tau=0.2,warm=8,sink=0,recent=0",
    "rotate:rk=2,rv=2,every=32,sink=2,recent=4",
    "oja:rk=2,rv=2,stale=rotate,sink=2,recent=4",
    "spectral:ranks=layers,block=64,scale=tile,weight=attention,sink=4,recent=16",
    "bands:bits=3,ends=int8,sink=16,recent=16",
    "bands:bits=3,calib=online,learn=48,sink=16,recent=8",
    "bands:bits=3,calib=online,learn=48,refresh=16,share=head,ends=int8,sink=0,recent=0",
    "prune:keep=0.5,sink=4,recent=16",
    "snapkv:keep=0.5,window=8",
    "h2o:keep=0.5+quant:group=16,sink=4,recent=32",
    "quest:keep=64,page=8,skip=0",
    "shadowkv:keep=64,chunk=8,outliers=2",
};

struct Small {
  SyntheticText text{testing::synthetic_shape(1, 1, 8), 120, 9};
  CacheFactory factory;
  std::unique_ptr<KvCache> cache;
  std::vector<std::byte> bytes;

  explicit Small(const std::string& recipe)
      : factory(factory_of(text, recipe)), cache(factory.make()) {
    testing::run(*cache, text, 0, 90, 45);
    bytes = saved(*cache);
    const auto loaded = factory.load(bytes);
    EXPECT_TRUE(loaded) << recipe << ": " << (loaded ? "" : loaded.error().message);
  }
};

void fix_checksum(std::vector<std::byte>& bytes) {
  const std::uint64_t sum = crc64(std::span(bytes).first(bytes.size() - 8));
  std::memcpy(bytes.data() + bytes.size() - 8, &sum, sizeof(sum));
}

void expect_corrupt(const Result<std::unique_ptr<KvCache>>& loaded) {
  ASSERT_FALSE(loaded);
  EXPECT_EQ(loaded.error().code, ErrorCode::kCorruptData) << loaded.error().message;
  EXPECT_NE(loaded.error().message.find("byte"), std::string::npos) << loaded.error().message;
}

TEST(PersistDamage, EveryTruncationIsRefusedWithItsPlace) {
  for (const char* recipe : kSmall) {
    const Small small(recipe);
    for (std::size_t size = 0; size < small.bytes.size(); ++size) {
      expect_corrupt(small.factory.load(std::span(small.bytes).first(size)));
    }
    auto longer = small.bytes;
    longer.push_back(std::byte{0});
    expect_corrupt(small.factory.load(longer));
  }
}

// Truncated payloads in a frame that is whole again: every read is checked on its own.
TEST(PersistDamage, EveryTruncatedPayloadIsRefused) {
  for (const char* recipe : kSmall) {
    const Small small(recipe);
    const std::size_t step = 1 + small.bytes.size() / 4000;
    for (std::size_t size = kFrameHeaderBytes; size + 8 < small.bytes.size(); size += step) {
      std::vector<std::byte> cut(small.bytes.begin(), small.bytes.begin() + std::ptrdiff_t(size));
      const std::uint64_t payload = size - kFrameHeaderBytes;
      std::memcpy(cut.data() + 16, &payload, sizeof(payload));
      cut.resize(size + 8);
      fix_checksum(cut);
      expect_corrupt(small.factory.load(cut));
    }
  }
}

TEST(PersistDamage, CachesOfAnEarlierVersionAreRefusedByIt) {
  Small small("full");
  const std::uint32_t earlier = 1;
  std::memcpy(small.bytes.data() + 8, &earlier, sizeof(earlier));
  fix_checksum(small.bytes);
  const auto loaded = small.factory.load(small.bytes);
  expect_corrupt(loaded);
  EXPECT_NE(loaded.error().message.find("version"), std::string::npos) << loaded.error().message;
}

void flip_some(std::vector<std::byte>& bytes, std::size_t end, Random& random) {
  const std::uint32_t bits = 1 + random.below(3);
  for (std::uint32_t i = 0; i < bits; ++i) {
    const std::uint32_t bit = random.below(static_cast<std::uint32_t>(8 * end));
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
  }
}

TEST(PersistDamage, TenThousandFlipsAreAllFoundAndTouchNothing) {
  Random random(4);
  std::vector<std::unique_ptr<Small>> all;
  for (const char* recipe : kSmall) all.push_back(std::make_unique<Small>(recipe));
  for (std::size_t flip = 0; flip < 10'000; ++flip) {
    const Small& small = *all[flip % all.size()];
    auto bytes = small.bytes;
    flip_some(bytes, bytes.size(), random);
    if (bytes == small.bytes) continue;  // a bit flipped twice
    expect_corrupt(small.factory.load(bytes));
  }
  for (const auto& small : all) EXPECT_EQ(saved(*small->cache), small->bytes);
}

// The checksum made right again: what is left are the checks of each field. Whatever loads is
// usable: it steps, settles, saves and forks without end of the program.
TEST(PersistDamage, TenThousandForgedCachesAreRefusedOrHarmless) {
  Random random(5);
  std::vector<std::unique_ptr<Small>> all;
  for (const char* recipe : kSmall) all.push_back(std::make_unique<Small>(recipe));
  std::size_t refused = 0;
  TeamState state;
  Team team(state, 0, 1);
  const auto scratch = make_attention_scratch();
  std::vector<float> out(10 * 2 * 8);
  for (std::size_t flip = 0; flip < 10'000; ++flip) {
    const Small& small = *all[flip % all.size()];
    auto bytes = small.bytes;
    // A third of the flips hits the fields before most arrays, a third those after.
    const std::size_t end = bytes.size() - 8;
    if (flip % 3 == 0) {
      flip_some(bytes, std::min<std::size_t>(end, 400), random);
    } else if (flip % 3 == 1) {
      const std::size_t bit =
          8 * end - 1 - random.below(8 * std::uint32_t(std::min<std::size_t>(end, 400)));
      bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    } else {
      flip_some(bytes, end, random);
    }
    fix_checksum(bytes);
    auto loaded = small.factory.load(bytes);
    if (!loaded) {
      ++refused;
      expect_corrupt(loaded);
      continue;
    }
    if (flip % 4 != 0) continue;
    KvCache& cache = **loaded;
    // Steps may fail (positions are taken, numbers too large to code), never end the program.
    for (std::int32_t at = 90; at < 120; at += 10) {
      (void)cache.append(0, small.text.rows(0, at, 10), team);
      (void)cache.attend(0, small.text.queries(0, at, 10), {out.data(), {10, 2, 8}}, *scratch,
                         team);
      (void)cache.settle(0, team);
    }
    (void)cache.attend(0, small.text.queries(0, 119, 1), {out.data(), {1, 2, 8}}, *scratch, team);
    (void)cache.settle(0, team);
    (void)cache.save();
    (void)cache.fork();
    (void)cache.truncate(80);
  }
  EXPECT_GT(refused, 3'000u);
  for (const auto& small : all) EXPECT_EQ(saved(*small->cache), small->bytes);
}

TEST(PersistDamage, AnotherRecipeShapeOrCalibrationIsRefusedByName) {
  const Small small("static:rk=3,rv=2,sink=2,recent=4");
  const auto message = [&](const CacheFactory& factory) {
    const auto loaded = factory.load(small.bytes);
    EXPECT_FALSE(loaded);
    return loaded ? std::string() : loaded.error().message;
  };
  EXPECT_NE(message(factory_of(small.text, "static:rk=3,rv=3,sink=2,recent=4")).find("recipe"),
            std::string::npos);
  const SyntheticText wider(testing::synthetic_shape(1, 2, 8), 120, 9);
  EXPECT_NE(message(factory_of(wider, "static:rk=3,rv=2,sink=2,recent=4")).find("query heads of"),
            std::string::npos);
  const SyntheticText other(testing::synthetic_shape(1, 1, 8), 120, 10);
  EXPECT_NE(message(factory_of(other, "static:rk=3,rv=2,sink=2,recent=4")).find("known code 0"),
            std::string::npos);
}

}  // namespace persist_test
}  // namespace kvspan
