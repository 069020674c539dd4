// SPDX-License-Identifier: Apache-2.0
// Units of a study on a real (if tiny) model, with recipes that need no calibration.
#include "eval/study/study_measure.h"

#include <gtest/gtest.h>

#include <atomic>

#include "eval/perplexity/windows.h"
#include "io/atomic_file.h"
#include "llama/tokenizer.h"
#include "tests/eval/faulty_cache.h"

namespace kvspan::testing {
namespace study_measure_test {

const std::string kModel = std::string(KVSPAN_SOURCE_DIR "/data/models/stories260K.gguf");

class StudyMeasureTest : public ::testing::Test {
 protected:
  void SetUp() override {
    engine_ = std::move(*Engine::load(kModel, {2, 64}));
    const auto bytes =
        read_file(std::string(KVSPAN_SOURCE_DIR "/data/text/tinystories_head.txt")).value();
    const auto tokenizer = Tokenizer::open(kModel).value();
    windows_ = cut_windows(*tokenizer, {reinterpret_cast<const char*>(bytes.data()), bytes.size()},
                           {.length = 384, .most = 1, .least = 0})
                   .value();
    options_ = study_options(true, 384);
    source_ = [this](const std::string& recipe) {
      return FaultyCache::make(engine_->cache_shape(), recipe);
    };
  }
  Result<std::optional<StudyData>> measure(const StudyUnit& unit,
                                           const std::vector<StudyRow>& known = {}) {
    return measure_unit(*engine_, unit, options_, windows_, source_, known, nullptr);
  }
  static PlannedRecipe planned(std::string recipe) {
    return {"rank", "label", std::move(recipe), "", std::nullopt};
  }
  std::unique_ptr<Engine> engine_;
  std::vector<std::vector<Token>> windows_;
  StudyOptions options_;
  CacheSource source_;
};

TEST_F(StudyMeasureTest, ARowForEveryRecipeWithTheReasonWhereOneFails) {
  const auto data = measure({"unit",
                             StudyUnit::Kind::kByPosition,
                             {planned("quant:bits=4"), planned("quant:bits=5"),
                              planned("fails-late"), planned("spectral:rk=d/4,rv=d/2,block=64,store=f16")}});
  ASSERT_TRUE(data && *data) << data.error().message;
  const std::vector<StudyRow>& rows = (*data)->rows;
  ASSERT_EQ(rows.size(), 5u);
  EXPECT_EQ(rows[0].measured.recipe, "full");
  EXPECT_TRUE(rows[1].usable());
  EXPECT_EQ(rows[1].family, "quant");
  EXPECT_FALSE(rows[1].rank_share);
  EXPECT_NE(rows[2].measured.failed.value_or("").find("bits"), std::string::npos);
  EXPECT_NE(rows[3].measured.failed.value_or("").find("no more room"), std::string::npos);
  EXPECT_TRUE(rows[4].usable());
  EXPECT_DOUBLE_EQ(rows[4].rank_share.value(), 0.375);
  ASSERT_EQ(rows[4].measured.by_position.size(), 8u);
  EXPECT_EQ(rows[4].measured.blocks.size(), 384u / PositionBlock::kPositions);
  EXPECT_EQ(rows[4].measured.bytes_at.back().tokens, 384);
  EXPECT_EQ(rows[4].measured.bytes_at.back().kv_bytes, rows[4].measured.kv_bytes);
  double kl = 0.0, count = 0.0;
  for (const PositionBlock& block : rows[4].measured.blocks) {
    if (block.position < 192) continue;
    kl += block.kl * block.count;
    count += block.count;
  }
  EXPECT_NEAR(kl / count, rows[4].measured.figures.kl, 1e-12);
}

TEST_F(StudyMeasureTest, WhatIsKnownIsNotReadAgain) {
  const StudyUnit unit{"unit", StudyUnit::Kind::kPerplexity, {planned("quant:bits=4")}};
  const auto once = measure(unit);
  ASSERT_TRUE(once && *once);
  StudyRow known = (*once)->rows[1];
  known.measured.figures.kl = 42.0;
  known.group = "elsewhere";
  const auto again = measure(unit, {known});
  ASSERT_TRUE(again && *again);
  EXPECT_EQ((*again)->rows[1].measured.figures.kl, 42.0);
  EXPECT_EQ((*again)->rows[1].group, "rank");
}

TEST_F(StudyMeasureTest, AUnitThatIsCancelledIsNone) {
  std::atomic<bool> cancel{true};
  engine_->set_cancel_flag(&cancel);
  const StudyUnit unit{"unit", StudyUnit::Kind::kPerplexity, {planned("quant:bits=4")}};
  const auto data = measure(unit);
  ASSERT_TRUE(data);
  EXPECT_FALSE(*data);
}

TEST_F(StudyMeasureTest, LevelsThatCannotBeHadSaySo) {
  auto probe = ByteProbe::record(*engine_, windows_.front(), options_.block).value();
  StudyUnit unit{"unit",
                 StudyUnit::Kind::kPerplexity,
                 {{"equal_bytes", "", "", "spectral", 6.0}, {"equal_bytes", "", "", "quant", 0.1}}};
  ASSERT_TRUE(fit_levels(unit, probe, options_, source_));
  EXPECT_NE(unit.recipes[0].recipe.find("spectral:rk="), std::string::npos);
  EXPECT_TRUE(unit.recipes[1].recipe.empty());
  const auto data = measure(unit);
  ASSERT_TRUE(data && *data);
  ASSERT_EQ((*data)->rows.size(), 3u);
  EXPECT_NEAR((*data)->rows[1].bits(), 6.0, 0.15 * 6.0);
  EXPECT_EQ((*data)->rows[1].level, 6.0);
  EXPECT_EQ((*data)->rows[2].family, "quant");
  EXPECT_NE((*data)->rows[2].measured.failed.value_or("").find("the nearest, quant:bits=2"),
            std::string::npos);
}

TEST_F(StudyMeasureTest, TracksErrorsBesideBounds) {
  options_.tracked_tokens = 256;
  const auto data =
      measure({"bounds",
               StudyUnit::Kind::kTracked,
               {planned("spectral:rk=2,rv=2,block=64,sink=4,recent=16,store=f16,certify=on")}});
  ASSERT_TRUE(data && *data);
  EXPECT_TRUE((*data)->rows.empty());          // nothing failed
  ASSERT_EQ((*data)->samples.size(), 4u * 5);  // steps, layers
  const TrackedStep& last = (*data)->samples.back().step;
  EXPECT_EQ(last.position, 255);
  ASSERT_TRUE(last.bound);
  EXPECT_GT(last.logit_error, 0.0);
  EXPECT_GE(last.bound->logits, last.logit_error);
}

}  // namespace study_measure_test
}  // namespace kvspan::testing
