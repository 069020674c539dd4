// SPDX-License-Identifier: Apache-2.0
// Calibration files: what is written is read back, and no damage goes unnoticed.
#include "llama/calibration_file.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <random>

#include "base/half.h"
#include "io/atomic_file.h"
#include "tests/io/temporary_folder.h"

namespace kvspan::testing {
namespace {

const std::string kStories = std::string(KVSPAN_SOURCE_DIR "/data/models/stories260K.gguf");
const std::string kFixture = std::string(KVSPAN_SOURCE_DIR "/data/fixtures/llama.gguf");

std::unique_ptr<Engine> load(const std::string& path) {
  auto engine = Engine::load(path, {1, 64});
  EXPECT_TRUE(engine) << engine.error().message;
  return std::move(*engine);
}

std::vector<float> random_numbers(std::size_t count, std::mt19937& random, bool half = false) {
  std::vector<float> numbers(count);
  std::uniform_real_distribution<float> uniform(0.1f, 2.0f);
  for (float& number : numbers) {
    number = uniform(random);
    if (half) number = to_float(to_half(number));
  }
  return numbers;
}

// Fits the engine's shape; the numbers mean nothing.
Calibration random_calibration(const Engine& engine) {
  std::mt19937 random(3);
  Calibration out;
  out.model = engine.info().name;
  out.fingerprint = engine.fingerprint();
  out.tokens = 1234;
  out.window = 512;
  out.skip = 32;
  out.sample_positions = {32, 35, 500};
  for (const LayerShape& shape : engine.cache_shape().layers) {
    const auto heads = static_cast<std::size_t>(shape.kv_heads);
    const auto dk = static_cast<std::size_t>(shape.key_dim);
    const auto dv = static_cast<std::size_t>(shape.value_dim);
    const std::size_t joint = heads * (dk + dv);
    const std::size_t residuals = heads * kResidualRanks * kResidualPercentiles.size();
    LayerCalibration layer;
    layer.key_mean = random_numbers(heads * dk, random);
    layer.value_mean = random_numbers(heads * dv, random);
    layer.joint_moment = random_numbers(joint * joint, random);
    layer.rotated_key_mean = random_numbers(heads * dk, random);
    layer.rotated_key_moment = random_numbers(heads * dk * heads * dk, random);
    layer.query_moment = random_numbers(heads * dk * dk, random);
    layer.raw_query_moment = random_numbers(heads * dk * dk, random);
    layer.output_metric = random_numbers(heads * dv * dv, random);
    layer.sample_rows = random_numbers(3 * joint, random, true);
    layer.key_residuals = random_numbers(residuals, random);
    layer.value_residuals = random_numbers(residuals, random);
    layer.residual_energy = 1.0 / 3.0;
    layer.key_weight = 0.25f;
    layer.value_weight = 4.0f;
    out.layers.push_back(std::move(layer));
  }
  out.rates = {{1.0f, 0.04f, 0.05f}, {2.0f, 0.006f, 0.007f}};
  return out;
}

void expect_equal(const Calibration& a, const Calibration& b) {
  EXPECT_EQ(a.model, b.model);
  EXPECT_EQ(a.fingerprint, b.fingerprint);
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_EQ(a.window, b.window);
  EXPECT_EQ(a.skip, b.skip);
  EXPECT_EQ(a.sample_positions, b.sample_positions);
  ASSERT_EQ(a.layers.size(), b.layers.size());
  for (std::size_t i = 0; i < a.layers.size(); ++i) {
    const LayerCalibration &x = a.layers[i], &y = b.layers[i];
    EXPECT_EQ(x.key_mean, y.key_mean);
    EXPECT_EQ(x.value_mean, y.value_mean);
    EXPECT_EQ(x.joint_moment, y.joint_moment);
    EXPECT_EQ(x.rotated_key_mean, y.rotated_key_mean);
    EXPECT_EQ(x.rotated_key_moment, y.rotated_key_moment);
    EXPECT_EQ(x.query_moment, y.query_moment);
    EXPECT_EQ(x.raw_query_moment, y.raw_query_moment);
    EXPECT_EQ(x.output_metric, y.output_metric);
    EXPECT_EQ(x.sample_rows, y.sample_rows);
    EXPECT_EQ(x.key_residuals, y.key_residuals);
    EXPECT_EQ(x.value_residuals, y.value_residuals);
    EXPECT_EQ(x.residual_energy, y.residual_energy);
    EXPECT_EQ(x.key_weight, y.key_weight);
    EXPECT_EQ(x.value_weight, y.value_weight);
  }
  ASSERT_EQ(a.rates.size(), b.rates.size());
  for (std::size_t i = 0; i < a.rates.size(); ++i) {
    EXPECT_EQ(a.rates[i].bits, b.rates[i].bits);
    EXPECT_EQ(a.rates[i].kl, b.rates[i].kl);
    EXPECT_EQ(a.rates[i].loss, b.rates[i].loss);
  }
}

TEST(CalibrationFile, ReadsBackWhatWasWritten) {
  const TemporaryFolder folder;
  const auto engine = load(kStories);
  const Calibration written = random_calibration(*engine);
  const std::string path = folder / "c.gguf";
  ASSERT_TRUE(save_calibration(path, written));
  const auto read = load_calibration(*engine, path);
  ASSERT_TRUE(read) << read.error().message;
  expect_equal(*read, written);
}

// One layer at a time, from the file as it was when it was opened.
TEST(CalibrationFile, OpenedGivesTheSameLayersOneByOne) {
  const TemporaryFolder folder;
  const auto engine = load(kStories);
  const Calibration written = random_calibration(*engine);
  const std::string path = folder / "c.gguf";
  ASSERT_TRUE(save_calibration(path, written));
  const auto opened = open_calibration(*engine, path);
  ASSERT_TRUE(opened) << opened.error().message;
  EXPECT_EQ(opened->source, path);
  EXPECT_TRUE(has_layer_weights(*opened));
  for (const LayerCalibration& layer : opened->layers) EXPECT_TRUE(layer.joint_moment.empty());
  Calibration changed = written;
  for (LayerCalibration& layer : changed.layers) layer.key_mean[0] += 1.0f;
  ASSERT_TRUE(save_calibration(path, changed));
  const auto whole = read_whole(engine->cache_shape(), *opened);
  ASSERT_TRUE(whole) << whole.error().message;
  expect_equal(*whole, written);
}

// Numbers are checked when they are read.
TEST(CalibrationFile, OpenedRefusesALayerThatDoesNotFit) {
  const TemporaryFolder folder;
  const auto engine = load(kStories);
  Calibration calibration = random_calibration(*engine);
  calibration.layers[2].key_mean[3] = INFINITY;
  const std::string path = folder / "c.gguf";
  ASSERT_TRUE(save_calibration(path, calibration));
  const auto opened = open_calibration(*engine, path);
  ASSERT_TRUE(opened) << opened.error().message;
  EXPECT_TRUE(layer_of(engine->cache_shape(), *opened, 1));
  const auto damaged = layer_of(engine->cache_shape(), *opened, 2);
  ASSERT_FALSE(damaged);
  EXPECT_NE(damaged.error().message.find("key_mean[3]"), std::string::npos);
  EXPECT_FALSE(CacheFactory::create(engine->cache_shape(), "bands", &*opened));
}

TEST(CalibrationFile, RefusesAnotherModelsFile) {
  const TemporaryFolder folder;
  const auto engine = load(kStories), other = load(kFixture);
  const std::string path = folder / "c.gguf";
  ASSERT_TRUE(save_calibration(path, random_calibration(*engine)));
  const auto read = load_calibration(*other, path);
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code, ErrorCode::kInvalidArgument);
  for (const std::string& part : {path, engine->fingerprint(), other->fingerprint()}) {
    EXPECT_NE(read.error().message.find(part), std::string::npos) << read.error().message;
  }
}

TEST(CalibrationFile, NoticesEveryCutAndEveryFlip) {
  const auto engine = load(kFixture);
  const auto bytes = encode_calibration(random_calibration(*engine));
  ASSERT_TRUE(bytes);
  ASSERT_TRUE(decode_calibration(*bytes, "whole"));
  std::mt19937 random(11);
  const auto refused = [](std::span<const std::byte> damaged) {
    const auto read = decode_calibration(damaged, "its-name");
    EXPECT_FALSE(read);
    if (read) return;
    EXPECT_EQ(read.error().code, ErrorCode::kCorruptData) << read.error().message;
    EXPECT_NE(read.error().message.find("its-name"), std::string::npos);
  };
  for (std::size_t length : {std::size_t{0}, std::size_t{3}, std::size_t{24}, std::size_t{40}}) {
    refused(std::span(*bytes).first(length));
  }
  for (int i = 0; i < 200; ++i) {
    refused(std::span(*bytes).first(random() % bytes->size()));
    std::vector<std::byte> flipped = *bytes;
    flipped[random() % flipped.size()] ^= std::byte{1} << (random() % 8);
    refused(flipped);
  }
}

// Files whose checksum is right, but whose content is not.
TEST(CalibrationFile, RefusesContentThatDoesNotFitTheModel) {
  const TemporaryFolder folder;
  const auto engine = load(kStories);
  const std::string path = folder / "c.gguf";
  const auto refused = [&](const char* what, const std::function<void(Calibration&)>& change) {
    Calibration calibration = random_calibration(*engine);
    change(calibration);
    ASSERT_TRUE(save_calibration(path, calibration));
    const auto read = load_calibration(*engine, path);
    ASSERT_FALSE(read) << what;
    EXPECT_NE(read.error().message.find(path), std::string::npos) << read.error().message;
    EXPECT_NE(read.error().message.find(what), std::string::npos) << read.error().message;
  };
  refused("layers", [](Calibration& c) { c.layers.pop_back(); });
  refused("joint_moment", [](Calibration& c) { c.layers[1].joint_moment.pop_back(); });
  refused("key_mean", [](Calibration& c) { c.layers[2].key_mean[3] = INFINITY; });
  refused("query_moment", [](Calibration& c) { c.layers[0].query_moment[0] = -1.0f; });
  refused("key_weight", [](Calibration& c) { c.layers[0].key_weight = -1.0f; });
  refused("rates", [](Calibration& c) { c.rates[1].bits = 0.5f; });
  refused("value_weight", [](Calibration& c) { c.layers.back().value_weight = 0.0f; });
  refused("residual_energy", [](Calibration& c) { c.layers[0].residual_energy = NAN; });
  refused("sample_positions", [](Calibration& c) { c.sample_positions[1] = -1; });
  refused("tokens", [](Calibration& c) { c.tokens = 0; });
}

TEST(CalibrationFile, AMissingFileIsNotFoundAndAModelIsNoCalibration) {
  const auto engine = load(kStories);
  const auto missing = load_calibration(*engine, "/nowhere/c.gguf");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, ErrorCode::kNotFound);
  EXPECT_FALSE(load_calibration(*engine, kStories));
}

TEST(Fingerprint, FollowsTheContentNotThePlace) {
  const TemporaryFolder folder;
  const std::string copy = folder / "moved.gguf";
  std::filesystem::copy_file(kStories, copy);
  const std::string original = load(kStories)->fingerprint();
  EXPECT_EQ(original.size(), 32u);
  EXPECT_EQ(load(copy)->fingerprint(), original);
  EXPECT_NE(load(kFixture)->fingerprint(), original);
  // One weight's last byte: the end of the file is the end of its last tensor, give or take
  // padding.
  auto bytes = read_file(copy).value();
  bytes[bytes.size() - 100] ^= std::byte{1};
  ASSERT_TRUE(write_file(copy, bytes));
  EXPECT_NE(load(copy)->fingerprint(), original);
}

}  // namespace
}  // namespace kvspan::testing
