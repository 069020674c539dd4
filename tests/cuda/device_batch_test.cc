// SPDX-License-Identifier: Apache-2.0
// Many long sequences at once: blocks of threads prepare queries for runs of anchors and of blocks of the mean
// that are longer than those of a sequence alone, whose answers other tests hold against exact ones.
#include "tests/cuda/device_run.h"

namespace kvspan::testing {
namespace {

void check_batch(const CacheShape& shape, const std::string& recipe) {
  constexpr std::int32_t kBlock = 1500, kBlocks = 6, kBatch = 16;
  const SyntheticText text(shape, kBlock, 41);
  const Calibration calibration = text.calibration();
  DeviceOptions options;
  options.budget_bytes = std::size_t{256} << 20;
  options.max_sequences = 2 * kBatch + 1;
  options.max_tokens = kBlock * kBlocks + 64;
  options.launch_tokens = kBatch * options.max_tokens;
  const auto cache = made_cache(shape, recipe, calibration, options);
  ASSERT_NE(cache, nullptr);
  const std::int32_t source = cache->add().value();
  for (std::int32_t b = 0; b < kBlocks; ++b) step_layers(*cache, source, text, 0, kBlock);
  // Each sequence goes on with a token of its own, in a batch and alone.
  std::vector<DeviceStep> batch;
  std::vector<const SyntheticText*> texts;
  std::vector<std::int32_t> firsts;
  std::vector<float> alone;
  for (std::int32_t i = 0; i < kBatch; ++i) {
    const std::int32_t own = cache->fork(source, nullptr).value();
    const std::vector<float> answer = step_layers(*cache, own, text, 7 * i, 1);
    alone.insert(alone.end(), answer.begin(), answer.end());
    batch.push_back({cache->fork(source, nullptr).value(), 1});
    texts.push_back(&text);
    firsts.push_back(7 * i);
  }
  const std::vector<float> together = step(*cache, 0, batch, texts, firsts);
  ASSERT_EQ(together.size(), alone.size());
  // Sequences alone are cut otherwise, and weights rounded otherwise: of 9,000 tokens each weight is off by up to
  // a 254th of the largest, about as often up as down, which comes to some thousandths of an answer. One block
  // of 128 tokens whose queries are wrong changes a tenth of it.
  const std::size_t numbers = together.size() / kBatch;
  for (std::size_t i = 0; i < kBatch; ++i) {
    double off = 0.0, all = 0.0;
    for (std::size_t k = i * numbers; k < (i + 1) * numbers; ++k) {
      off += std::pow(double{together[k]} - alone[k], 2);
      all += std::pow(double{alone[k]}, 2);
    }
    EXPECT_LE(std::sqrt(off), 0.02 * std::sqrt(all)) << "sequence " << i;
  }
}

TEST(DeviceBatch, LongSequencesAnswerAsEachAlone) {
  KVSPAN_NEEDS_DEVICE();
  const std::string ends = "bands:quantizer=uniform,escape=0,sink=32,recent=48,";
  check_batch(wide_shape(8, 4, 64), ends + "bits=2,levels=0/2/4/6/8,anchor=128");
  check_batch(wide_shape(2, 4, 256), ends + "bits=2,levels=0/2,anchor=128,heads=1,share=kvgroup");
}

}  // namespace
}  // namespace kvspan::testing
