// SPDX-License-Identifier: Apache-2.0
#include "eval/calibrate/layer_weights.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "eval/calibrate/one_layer_cache.h"
#include "eval/perplexity/perplexity.h"

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

TEST(OneLayerCache, IsExactWhereThatLayerIs) {
  const auto engine = stories();
  const CacheShape& shape = engine->cache_shape();
  const std::vector<std::vector<Token>> windows{passage(96, 3)};
  const std::vector<std::string> recipes{"same", "other"};
  const auto source = [&](const std::string& name) -> Result<std::unique_ptr<KvCache>> {
    auto exact = make_cache(shape, "full");
    if (name == "full" || !exact) return exact;
    auto one = make_cache({{shape.layers[2]}}, name == "same" ? "full" : "window:size=8");
    if (!one) return one;
    return std::unique_ptr<KvCache>(
        std::make_unique<OneLayerCache>(std::move(*exact), std::move(*one), 2));
  };
  PerplexityOptions options;
  options.block = 16;
  const auto report = measure_perplexity(*engine, windows, recipes, source, options);
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(report->rows[1].figures.kl, 0.0);
  EXPECT_GT(report->rows[2].figures.kl, 1e-6);
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

// A window in which errors cost far more than elsewhere does not decide.
TEST(LayerWeights, AreTheGeometricMeanOverWindows) {
  const auto engine = stories();
  const Calibration calibration = gathered(*engine);
  const auto measured = [&](const std::vector<std::vector<Token>>& passages) {
    Calibration copy = calibration;
    EXPECT_TRUE(measure_layer_weights(*engine, passages, 1.0, copy));
    return copy.layers;
  };
  const std::vector<Token> a = passage(96, 7), b = passage(96, 31);
  const auto of_a = measured({a}), of_b = measured({b}), of_both = measured({a, b});
  for (std::size_t i = 0; i < of_both.size(); ++i) {
    const auto near = [&](float LayerCalibration::*weight) {
      const float middle = std::sqrt(of_a[i].*weight * (of_b[i].*weight));
      EXPECT_NEAR(of_both[i].*weight, middle, 1e-4f * middle) << "layer " << i;
    };
    near(&LayerCalibration::key_weight);
    near(&LayerCalibration::value_weight);
  }
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
