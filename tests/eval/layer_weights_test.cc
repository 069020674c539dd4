// SPDX-License-Identifier: Apache-2.0
#include "eval/layer_weights.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "eval/layer_probe.h"

namespace kvspan {
namespace {

// A trained model: coding it costs something.
std::unique_ptr<Engine> stories() {
  auto engine = Engine::load(KVSPAN_SOURCE_DIR "/data/models/stories260K.gguf", {.threads = 1});
  EXPECT_TRUE(engine) << engine.error().message;
  return std::move(*engine);
}

// Tokens that the model itself finds likely would be better; these come back often enough.
std::vector<Token> passage(std::size_t length, std::size_t from) {
  std::vector<Token> tokens(length);
  for (std::size_t i = 0; i < length; ++i) {
    tokens[i] = static_cast<Token>(10 + (from + i * i * 7 + i * 3) % 400);
  }
  return tokens;
}

Calibration gathered(Engine& engine) {
  const std::vector<std::vector<Token>> windows{passage(256, 0), passage(256, 50)};
  CalibrateOptions options;
  options.window = 256;
  options.skip = 16;
  auto calibration = gather_calibration(engine, windows, options);
  EXPECT_TRUE(calibration) << calibration.error().message;
  return std::move(*calibration);
}

// Logits of the tokens after `prefix`, read with layer 2 in a cache of `recipe`, or exactly; the
// prefix is read exactly in either case.
std::vector<float> after_prefix(Engine& engine, const std::vector<Token>& prefix,
                                const std::vector<Token>& block, const std::string& recipe) {
  const CacheShape& shape = engine.cache_shape();
  std::vector<LayerProbe::Coded> coded;
  for (const std::string& name : {std::string("window:size=4"), recipe}) {
    coded.push_back({2, make_cache({{shape.layers[2]}}, name).value()});
  }
  LayerProbe probe(make_cache(shape, "full").value(), std::move(coded));
  EXPECT_TRUE(engine.prefill(probe, prefix));
  // What is read in between leaves no trace.
  for (const std::size_t index : {std::size_t{0}, std::size_t{1}}) {
    probe.read(index);
    const BatchPart part{&probe, block, BatchPart::Logits::kAll};
    EXPECT_TRUE(engine.decode({&part, 1}));
    EXPECT_TRUE(probe.truncate(static_cast<std::int32_t>(prefix.size())));
  }
  std::vector<float> all;
  for (std::int32_t i = 0; i < engine.logit_rows(); ++i) {
    const auto row = engine.logits(i);
    all.insert(all.end(), row.begin(), row.end());
  }
  return all;
}

TEST(LayerProbe, IsExactWhereThatLayerIs) {
  const auto engine = stories();
  const std::vector<Token> prefix = passage(64, 3), block = passage(16, 90);
  auto whole = make_cache(engine->cache_shape(), "full").value();
  ASSERT_TRUE(engine->prefill(*whole, prefix));
  const BatchPart part{whole.get(), block, BatchPart::Logits::kAll};
  ASSERT_TRUE(engine->decode({&part, 1}));
  std::vector<float> exact;
  for (std::int32_t i = 0; i < engine->logit_rows(); ++i) {
    const auto row = engine->logits(i);
    exact.insert(exact.end(), row.begin(), row.end());
  }
  EXPECT_EQ(after_prefix(*engine, prefix, block, "full"), exact);
  EXPECT_NE(after_prefix(*engine, prefix, block, "window:size=8"), exact);
}

TEST(LayerWeights, AreKlOverPredictedDistortion) {
  const auto engine = stories();
  Calibration calibration = gathered(*engine);
  const std::vector<std::vector<Token>> passages{passage(192, 7)};
  std::size_t last = 0, total = 0;
  ASSERT_TRUE(measure_layer_weights(*engine, passages, 1.0, calibration,
                                    [&](std::size_t done, std::size_t all) {
                                      EXPECT_GE(done, last);
                                      last = done;
                                      total = all;
                                    }));
  EXPECT_EQ(last, total);
  EXPECT_TRUE(has_layer_weights(calibration));
  for (const LayerCalibration& layer : calibration.layers) {
    EXPECT_GT(layer.key_weight, 0.0f);
    EXPECT_GT(layer.value_weight, 0.0f);
  }
  // Where errors are small the divergence is quadratic in them, as distortion is: a layer's weight
  // hardly depends on how coarsely it was coded. A factor of 4 either way for the geometric mean.
  Calibration finer = calibration;
  ASSERT_TRUE(measure_layer_weights(*engine, passages, 2.0, finer));
  double log_ratio = 0.0;
  for (std::size_t i = 0; i < finer.layers.size(); ++i) {
    log_ratio += std::log(finer.layers[i].value_weight / calibration.layers[i].value_weight);
  }
  EXPECT_LT(std::abs(log_ratio / static_cast<double>(finer.layers.size())), std::log(4.0));
}

TEST(LayerWeights, StopWhenCancelled) {
  const auto engine = stories();
  Calibration calibration = gathered(*engine);
  const std::atomic<bool> cancel{true};
  engine->set_cancel_flag(&cancel);
  const std::vector<std::vector<Token>> passages{passage(192, 7)};
  const Status status = measure_layer_weights(*engine, passages, 1.0, calibration);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kCancelled);
  EXPECT_FALSE(has_layer_weights(calibration));
}

}  // namespace
}  // namespace kvspan
