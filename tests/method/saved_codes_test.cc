// SPDX-License-Identifier: Apache-2.0
// Codes that are designed once: a factory from saved codes makes caches that do the same, bit for
// bit, without the calibration; damaged or foreign codes are refused.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "base/byte_stream.h"
#include "base/random.h"
#include "kvspan/cache.h"
#include "tests/base/sweep.h"
#include "tests/method/recipes.h"
#include "tests/method/synthetic.h"

namespace kvspan {
namespace saved_codes_test {

using testing::SuiteRecipe;
using testing::SyntheticText;

const SyntheticText& read_text() {
  static const SyntheticText text(testing::synthetic_shape(), 220, 7);
  return text;
}

CacheFactory designed(const std::string& recipe) {
  static const Calibration calibration = [] {
    Calibration of_text = read_text().calibration();
    of_text.checksum = 77;
    return of_text;
  }();
  auto factory = CacheFactory::create(read_text().shape(), recipe, &calibration);
  EXPECT_TRUE(factory) << recipe << ": " << (factory ? "" : factory.error().message);
  return std::move(factory).value();
}

class SavedCodes : public ::testing::TestWithParam<SuiteRecipe> {};

TEST_P(SavedCodes, MakeEqualCachesWithoutACalibration) {
  const CacheFactory factory = designed(GetParam().text);
  const auto codes = factory.save_codes();
  ASSERT_TRUE(codes);
  const auto loaded = CacheFactory::load_codes(read_text().shape(), GetParam().text, *codes);
  ASSERT_TRUE(loaded) << loaded.error().message;
  EXPECT_EQ(loaded->recipe(), factory.recipe());
  EXPECT_EQ(loaded->calibration_checksum(), 77u);
  EXPECT_EQ(loaded->shared_bytes(), factory.shared_bytes());
  EXPECT_EQ(loaded->save_codes().value(), *codes);
  const auto one = factory.make(), other = loaded->make();
  EXPECT_EQ(testing::run(*one, read_text(), 0, 200, 50),
            testing::run(*other, read_text(), 0, 200, 50));
  // What one of them saved the other loads.
  const auto cache = loaded->load(one->save().value());
  ASSERT_TRUE(cache) << cache.error().message;
  EXPECT_EQ(testing::run(**cache, read_text(), 200, 20, 1),
            testing::run(*other, read_text(), 200, 20, 1));
}

INSTANTIATE_TEST_SUITE_P(All, SavedCodes, ::testing::ValuesIn(testing::suite_recipes()),
                         testing::recipe_name);

TEST(SavedCodesOfAuto, KeepWhatItChose) {
  const CacheFactory factory = designed("auto:budget=60000,ctx=400");
  EXPECT_EQ(factory.recipe().substr(0, 6), "bands:");
  const auto codes = factory.save_codes().value();
  const auto loaded =
      CacheFactory::load_codes(read_text().shape(), "auto:budget=60000,ctx=400", codes);
  ASSERT_TRUE(loaded) << loaded.error().message;
  EXPECT_EQ(loaded->recipe(), factory.recipe());
}

TEST(SavedCodesOf, AnotherRecipeOrShapeAreRefusedByName) {
  const auto codes = designed("bands:bits=3").save_codes().value();
  const auto recipe = CacheFactory::load_codes(read_text().shape(), "bands:bits=2", codes);
  ASSERT_FALSE(recipe);
  EXPECT_EQ(recipe.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(recipe.error().message.find("bits=3"), std::string::npos) << recipe.error().message;
  CacheShape shape = read_text().shape();
  shape.layers[1].logit_scale *= 2.0f;
  const auto other = CacheFactory::load_codes(shape, "bands:bits=3", codes);
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(other.error().message.find("logit scale of layer 1"), std::string::npos)
      << other.error().message;
}

TEST(SavedCodesOf, DamageIsNoticed) {
  const auto codes = designed("static:rk=6,rv=8").save_codes().value();
  Random random(3);
  for (std::size_t i = 0; i < testing::sweep(300); ++i) {
    const auto cut = std::span(codes).first(random.bits() % codes.size());
    EXPECT_FALSE(CacheFactory::load_codes(read_text().shape(), "static:rk=6,rv=8", cut));
    auto flipped = codes;
    flipped[random.bits() % flipped.size()] ^= std::byte{1} << (random.bits() % 8);
    EXPECT_FALSE(CacheFactory::load_codes(read_text().shape(), "static:rk=6,rv=8", flipped));
  }
}

// A call may fail where numbers are no use; none may do harm.
void step_whatever_comes(KvCache& cache) {
  TeamState state;
  Team team(state, 0, 1);
  const auto scratch = make_attention_scratch();
  std::vector<float> out(std::size_t{30} * 4 * 16);
  for (std::int32_t at = 0; at < 90; at += 30) {
    for (int layer = 0; layer < 2; ++layer) {
      const auto l = std::size_t(layer);
      (void)cache.append(layer, read_text().rows(l, at, 30), team);
      (void)cache.attend(layer, read_text().queries(l, at, 30), {out.data(), {30, 4, 16}}, *scratch,
                         team);
      (void)cache.settle(layer, team);
    }
  }
}

// Bytes that were changed and given a right checksum are refused or safe to go on with.
TEST(SavedCodesOf, ForgeriesAreRefusedOrHarmless) {
  for (const std::string recipe :
       {"bands:bits=3,anchor=32,sink=16,recent=32", "fd:rk=6,rv=6,sink=3,recent=7",
        "static:ratio=0.5,ranks=table,sink=4,recent=8"}) {
    const auto codes = designed(recipe).save_codes().value();
    Random random(5);
    for (std::size_t i = 0; i < testing::sweep(400); ++i) {
      auto forged = codes;
      for (int change = 0; change < 3; ++change) {
        forged[24 + random.bits() % (forged.size() - 32)] = static_cast<std::byte>(random.bits());
      }
      const std::uint64_t sum = crc64(std::span(forged).first(forged.size() - 8));
      std::memcpy(forged.data() + forged.size() - 8, &sum, 8);
      const auto factory = CacheFactory::load_codes(read_text().shape(), recipe, forged);
      if (!factory) continue;
      step_whatever_comes(*factory->make());
    }
  }
}

TEST(DesignProgressOf, BandsCountsUpAndCanBeStopped) {
  const Calibration calibration = read_text().calibration();
  std::size_t last = 0, all = 0;
  ASSERT_TRUE(CacheFactory::create(read_text().shape(), "bands:bits=2", &calibration,
                                   [&](std::size_t done, std::size_t total) {
                                     EXPECT_EQ(done, last + 1);
                                     last = done;
                                     all = total;
                                     return true;
                                   }));
  EXPECT_GT(all, 0u);
  EXPECT_EQ(last, all);
  const auto stopped = CacheFactory::create(read_text().shape(), "bands:bits=2", &calibration,
                                            [](std::size_t, std::size_t) { return false; });
  ASSERT_FALSE(stopped);
  EXPECT_EQ(stopped.error().code, ErrorCode::kCancelled);
}

}  // namespace saved_codes_test
}  // namespace kvspan
