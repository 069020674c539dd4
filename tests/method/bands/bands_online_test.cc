// SPDX-License-Identifier: Apache-2.0
// Codes that a text learns from its own start (bands:calib=online).
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "method/bands/bands_policy.h"
#include "method/method_cache.h"
#include "recipe/recipe.h"
#include "tests/method/synthetic.h"

namespace kvspan {
namespace {

using testing::SyntheticText;

std::unique_ptr<MethodCache> make(const SyntheticText& text, const std::string& recipe,
                                  const Calibration* calibration = nullptr) {
  auto prepared = prepare(text.shape(), Recipe::parse(recipe).value(), calibration);
  EXPECT_TRUE(prepared) << recipe << ": " << (prepared ? "" : prepared.error().message);
  return std::make_unique<MethodCache>(*prepared);
}

// Relative error of what attention gives, for tokens `first` on, against full rank.
double error_of(const SyntheticText& text, const std::string& recipe, std::int32_t first,
                const Calibration* calibration = nullptr) {
  const auto cache = make(text, recipe, calibration), exact = make(text, "full:store=f32");
  testing::run(*cache, text, 0, first, 64);
  testing::run(*exact, text, 0, first, 64);
  const std::vector<float> a = testing::run(*cache, text, first, text.size() - first, 16);
  const std::vector<float> b = testing::run(*exact, text, first, text.size() - first, 16);
  double off = 0.0, all = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    off += std::pow(double{a[i]} - b[i], 2.0);
    all += std::pow(double{b[i]}, 2.0);
  }
  return std::sqrt(off / all);
}

std::size_t coded(const Group& group) {
  std::size_t tokens = 0;
  for (const BandsTokens& bands : bands_of(group)) tokens += std::size_t(bands.keys().tokens());
  return tokens;
}

TEST(BandsOnline, NeedsNoCalibrationAndUsesNone) {
  const Recipe recipe =
      Recipe::parse("bands:calib=online,learn=64,sink=16,recent=16,anchor=32").value();
  EXPECT_FALSE(needs_calibration(recipe));
  EXPECT_EQ(recipe.method().word("metric"), "iso");
  const SyntheticText text(testing::synthetic_shape(), 200, 7);
  const Calibration other = SyntheticText(testing::synthetic_shape(), 100, 8).calibration();
  const auto with = make(text, recipe.text(), &other), without = make(text, recipe.text());
  EXPECT_EQ(testing::run(*with, text, 0, 200, 20), testing::run(*without, text, 0, 200, 20));
  const auto query = Recipe::parse("bands:calib=online,metric=query");
  ASSERT_FALSE(query);
  EXPECT_NE(query.error().message.find("allowed: metric=iso"), std::string::npos);
}

// Nothing is coded until `learn` tokens wait beyond sink and recent ones; then all of those are,
// and the code is the sequence's own until it is cleared.
TEST(BandsOnline, CodesAfterLearningOnly) {
  const SyntheticText text(testing::synthetic_shape(), 300, 7);
  const auto cache = make(text, "bands:calib=online,learn=100,sink=10,recent=20,anchor=32");
  const Group& group = cache->group(0, 0);
  // 16 sink tokens, 112 to learn from, both in whole tiles, and 20 recent ones.
  testing::run(*cache, text, 0, 16 + 112 + 20 - 1, 7);
  EXPECT_TRUE(bands_of(group).empty());
  EXPECT_EQ(cache->bytes().bases, 0u);
  EXPECT_GT(cache->bytes().coefficients, 0u) << "8 bits";
  EXPECT_NE(cache->policy(0, 0)->code_source(group).find("96 of 112 tokens"), std::string::npos)
      << cache->policy(0, 0)->code_source(group);
  testing::run(*cache, text, 147, 1, 1);
  ASSERT_EQ(bands_of(group).size(), 1u);
  EXPECT_EQ(coded(group), 112u);
  EXPECT_EQ(group.list().tokens(), 16 + 20);
  EXPECT_NE(cache->policy(0, 0)->code_source(group).find("learnt from this text"),
            std::string::npos);
  const BandsCode& code = bands_of(group)[0].keys().code();
  EXPECT_EQ(code.memory_kind(), MemoryKind::kBases);
  EXPECT_EQ(cache->bytes().bases,
            code.bytes() + bands_of(cache->group(1, 0))[0].keys().code().bytes());
  // Forks read the same code; it goes with its last reader.
  auto fork = cache->fork().value();
  EXPECT_EQ(cache->ledger()->bytes(MemoryKind::kBases), cache->bytes().bases);
  const std::shared_ptr<Ledger> both = cache->ledger();
  cache->clear();
  EXPECT_EQ(cache->bytes().total, 0u);
  EXPECT_EQ(cache->ledger()->total(), 0u);
  EXPECT_GT(both->bytes(MemoryKind::kBases), 0u);
  fork.reset();
  EXPECT_EQ(both->total(), 0u);
  // What was cleared learns again.
  testing::run(*cache, text, 0, 200, 50);
  EXPECT_EQ(bands_of(cache->group(0, 0)).size(), 1u);
}

TEST(BandsOnline, RefreshLearnsFromEveryNTokens) {
  const SyntheticText text(testing::synthetic_shape(), 300, 7);
  for (const char* ends : {"f16", "int8"}) {
    const auto cache = make(text, fmt::format("bands:calib=online,learn=48,refresh=64,sink=16,"
                                              "recent=16,escape=0,ends={}",
                                              ends));
    testing::run(*cache, text, 0, 300, 10);
    const Group& group = cache->group(1, 0);
    // 300 - 16 sink - 16 recent = 268 = 48 + 3 x 64 + 28.
    ASSERT_EQ(bands_of(group).size(), 4u) << ends;
    EXPECT_EQ(bands_of(group)[0].keys().tokens(), 48);
    for (std::size_t i = 1; i < 4; ++i) {
      EXPECT_EQ(bands_of(group)[i].keys().tokens(), 64);
      EXPECT_EQ(bands_of(group)[i].keys().first_position(),
                bands_of(group)[i - 1].keys().next_position());
      EXPECT_NE(bands_of(group)[i].keys().code().checksum(),
                bands_of(group)[i - 1].keys().code().checksum());
    }
  }
}

TEST(BandsOnline, ErrorFallsWithBits) {
  const SyntheticText text(testing::synthetic_shape(2, 2, 32), 600, 6);
  const std::string tail = ",calib=online,learn=256,sink=32,recent=0,anchor=32,escape=0";
  const double one = error_of(text, "bands:bits=1" + tail, 400);
  const double two = error_of(text, "bands:bits=2" + tail, 400);
  const double four = error_of(text, "bands:bits=4" + tail, 400);
  EXPECT_LT(two, 0.8 * one);
  EXPECT_LT(four, 0.6 * two);
  EXPECT_LT(two, error_of(text, "quant:bits=2,sink=32,recent=0", 400));
}

// The synthetic text turns from six directions a head to six others: a code of its first tokens
// fits its last ones badly, codes of their own tokens do not.
TEST(BandsOnline, RefreshFollowsDrift) {
  // 32 + 5 x 384 tokens are coded when the last ones are read: few wait at 8 bits.
  const SyntheticText text(testing::synthetic_shape(2, 2, 32), 1990, 4);
  const std::string tail = ",bits=2,sink=32,recent=0,anchor=32,escape=0";
  const double once = error_of(text, "bands:calib=online,learn=384" + tail, 1953);
  const double again = error_of(text, "bands:calib=online,learn=384,refresh=384" + tail, 1953);
  std::printf("drift, bits=2: %.4f with one code, %.4f with refresh\n", once, again);
  EXPECT_LT(again, 0.8 * once);
}

// Real activations, 192 and 256 tokens of which 96 are learnt from, against a calibration of this
// very text, metric of queries and all: hardly more than a third worse on the average of 9, where
// chance alone makes single ones vary by as much. Anchors are 64 positions apart: the texts have no
// more than one of the usual blocks.
TEST(BandsOnline, CloseToACalibrationOfTheSameText) {
  double sum = 0.0;
  for (const auto& a : testing::all_activations()) {
    const SyntheticText text(a);
    const Calibration calibration = text.calibration();
    for (const char* bits : {"1.5", "2", "3"}) {
      const std::string tail = std::string(",sink=32,recent=16,anchor=64,bits=") + bits;
      const std::int32_t first = text.size() - 48;
      const double file = error_of(text, "bands:calib=file" + tail, first, &calibration);
      const double online = error_of(text, "bands:calib=online,learn=96" + tail, first);
      std::printf("%s, bits=%s: error %.4f from a calibration, %.4f online\n", a.name.c_str(), bits,
                  file, online);
      sum += std::log(online / file);
    }
  }
  std::printf("online / calibration: %.3f\n", std::exp(sum / 9.0));
  EXPECT_LT(std::exp(sum / 9.0), 1.4);
}

// SmolLM2's shape. Of both B and the metric are held, and no analysis. With few positions a block,
// so that the mean at each of them takes little room.
TEST(BandsOnline, LearntCodesTakeNoMoreRoomThanCalibratedOnes) {
  const SyntheticText text(testing::synthetic_shape(1, 3, 64), 2208, 4);
  const std::string tail = ",bits=2,levels=0/2/4,anchor=64";
  const auto cache = make(text, "bands:calib=online" + tail);
  TeamState state;
  Team team(state, 0, 1);
  ASSERT_TRUE(cache->append(0, text.rows(0, 0, text.size()), team));
  const std::size_t before = cache->bytes().total;
  const auto start = std::chrono::steady_clock::now();
  ASSERT_TRUE(cache->settle(0, team));
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  const CacheBytes after = cache->bytes();
  const Calibration calibration = text.calibration();
  const auto calibrated = make(text, "bands:metric=iso" + tail, &calibration);
  const auto places = [](const MethodCache& of) {
    return bands_of(of.group(0, 0))[0].keys().code().places();
  };
  std::printf(
      "learnt from 2048 tokens and coded in %.2f s: %zu bytes f16, then %zu, %zu of them the "
      "code of %d components; a calibrated one of %d takes %zu\n",
      seconds.count(), before, after.total, after.bases, places(*cache), places(*calibrated),
      calibrated->bytes().shared);
  EXPECT_LT(double(after.bases) / places(*cache),
            1.02 * double(calibrated->bytes().shared) / places(*calibrated));
  // B in f16, its key rows in int8, a quarter of that, and what a place needs; in f32, or with A,
  // it would be more than 2 B.
  const double synthesis = 384.0 * sizeof(Half);
  EXPECT_LT(double(calibrated->bytes().shared) / places(*calibrated), 1.6 * synthesis);
}

// A side, or all, without any variance, and tokens of huge norm.
TEST(BandsOnline, LearnsFromDegenerateText) {
  const CacheShape shape = testing::synthetic_shape(1, 1, 8);
  for (const bool keys_vary : {false, true}) {
    for (const float value : {0.0f, 3.0f, 60000.0f}) {
      const SyntheticText text(shape, 200, 5);
      std::vector<float> constant(200 * 8, value);
      const auto factory = CacheFactory::create(
          shape, "bands:calib=online,learn=48,refresh=48,sink=0,recent=0,bits=3", nullptr);
      const auto cache = factory.value().make();
      TeamState state;
      Team team(state, 0, 1);
      const auto scratch = make_attention_scratch();
      std::vector<float> out(10 * 2 * 8);
      for (std::int32_t at = 0; at < 200; at += 10) {
        KvRows rows = text.rows(0, at, 10);
        if (!keys_vary) rows.keys.data = constant.data();
        rows.values.data = constant.data();
        ASSERT_TRUE(cache->append(0, rows, team));
        ASSERT_TRUE(
            cache->attend(0, text.queries(0, at, 10), {out.data(), {10, 2, 8}}, *scratch, team));
        const Status settled = cache->settle(0, team);
        ASSERT_TRUE(settled) << settled.error().message;
        // Directions without any spread have steps of 1 under the least gain, 2^-16.
        for (const float x : out) ASSERT_NEAR(x, value, 0.01f * value + 0x1p-16f) << at;
      }
      const auto bytes = cache->save();
      ASSERT_TRUE(bytes);
      const auto loaded = factory.value().load(*bytes);
      ASSERT_TRUE(loaded) << loaded.error().message;
      EXPECT_EQ((*loaded)->save().value(), *bytes);
    }
  }
}

}  // namespace
}  // namespace kvspan
