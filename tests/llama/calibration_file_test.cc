// SPDX-License-Identifier: Apache-2.0
// Calibration files: what is written is read back, and no damage goes unnoticed.
#include "llama/calibration_file.h"

#include <ggml.h>
#include <gguf.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "io/atomic_file.h"
#include "tests/cache/random_calibration.h"
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

Calibration random_calibration(const Engine& engine) {
  Calibration out = testing::random_calibration(engine.cache_shape());
  out.model = engine.info().name;
  out.fingerprint = engine.fingerprint();
  return out;
}

// Angles that flags change have a calibration of their own; that of the model's is refused for them.
TEST(CalibrationFile, OtherAnglesHaveAnotherFile) {
  const TemporaryFolder folder;
  const auto engine = load(kStories);
  EngineOptions options{1, 64};
  options.rope.base = 5e5f;
  const auto stretched = Engine::load(kStories, options);
  ASSERT_TRUE(stretched) << stretched.error().message;
  EXPECT_NE(calibration_path(**stretched).value(), calibration_path(*engine).value());
  const std::string path = folder / "c.gguf";
  ASSERT_TRUE(save_calibration(path, random_calibration(*engine)));
  EXPECT_TRUE(open_calibration(*engine, path));
  const auto refused = open_calibration(**stretched, path);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("made with a RoPE of angle 1 0.1, the model's is 0.03"),
            std::string::npos)
      << refused.error().message;
}

// Bytes that GGUF's own reader takes, too: names, types and places of the tensors are what it
// finds.
TEST(CalibrationFile, IsAGgufFile) {
  const TemporaryFolder folder;
  const auto engine = load(kStories);
  const Calibration written = random_calibration(*engine);
  const std::string path = folder / "c.gguf";
  ASSERT_TRUE(save_calibration(path, written));
  const auto bytes = read_file(path).value();
  ggml_context* tensors = nullptr;
  gguf_context* const gguf = gguf_init_from_file(path.c_str(), {/*no_alloc=*/true, &tensors});
  ASSERT_NE(gguf, nullptr);
  EXPECT_EQ(gguf_get_alignment(gguf), 32u);
  EXPECT_EQ(gguf_get_n_kv(gguf), 18);
  const auto key = [&](const char* name) {
    return gguf_find_key(gguf, (std::string("kvspan.calibration.") + name).c_str());
  };
  EXPECT_EQ(gguf_get_val_str(gguf, key("fingerprint")), written.fingerprint);
  EXPECT_EQ(gguf_get_val_i64(gguf, key("tokens")), written.tokens);
  EXPECT_EQ(gguf_get_val_u32(gguf, key("version")), 6u);
  EXPECT_EQ(gguf_get_val_u32(gguf, key("neighbours")), 2u);
  ASSERT_EQ(gguf_get_arr_n(gguf, key("sample_positions")), written.sample_positions.size());
  EXPECT_EQ(static_cast<const std::int32_t*>(gguf_get_arr_data(gguf, key("sample_positions")))[2],
            written.sample_positions[2]);
  // Two following layers each, but for the last two.
  ASSERT_EQ(gguf_get_n_tensors(gguf), static_cast<std::int64_t>(15 * written.layers.size() - 3));
  const auto expect_tensor = [&](const std::string& name, const std::vector<float>& wanted) {
    const auto id = gguf_find_tensor(gguf, name.c_str());
    ASSERT_GE(id, 0) << name;
    ASSERT_EQ(gguf_get_tensor_type(gguf, id), GGML_TYPE_F32);
    ASSERT_EQ(gguf_get_tensor_size(gguf, id), wanted.size() * sizeof(float));
    EXPECT_EQ(
        std::memcmp(wanted.data(),
                    bytes.data() + gguf_get_data_offset(gguf) + gguf_get_tensor_offset(gguf, id),
                    wanted.size() * sizeof(float)),
        0)
        << name;
  };
  for (std::size_t l = 0; l < written.layers.size(); ++l) {
    const std::string layer = "layer." + std::to_string(l);
    expect_tensor(layer + ".joint_moment", written.layers[l].joint_moment);
    for (std::size_t j = 0; j < written.layers[l].cross_moments.size(); ++j) {
      expect_tensor(layer + ".cross_moment." + std::to_string(j),
                    written.layers[l].cross_moments[j]);
    }
  }
  ggml_free(tensors);
  gguf_free(gguf);
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
  refused("cross_moments[1]", [](Calibration& c) { c.layers[0].cross_moments[1].pop_back(); });
  refused("cross_moments[0][5]", [](Calibration& c) { c.layers[3].cross_moments[0][5] = NAN; });
  refused("cross_moment.1 is missing",
          [](Calibration& c) { c.layers[1].cross_moments.pop_back(); });
  refused("query_moment", [](Calibration& c) { c.layers[0].query_moment[0] = -1.0f; });
  refused("key_weight", [](Calibration& c) { c.layers[0].key_weight = -1.0f; });
  refused("rates", [](Calibration& c) { c.rates[1].bits = 0.5f; });
  refused("value_weight", [](Calibration& c) { c.layers.back().value_weight = 0.0f; });
  refused("key_metric", [](Calibration& c) { c.layers[0].key_metric[0] = -1.0f; });
  refused("value_metric", [](Calibration& c) { c.layers[1].value_metric.pop_back(); });
  refused("residual_energy", [](Calibration& c) { c.layers[0].residual_energy = NAN; });
  refused("sample_positions", [](Calibration& c) { c.sample_positions[1] = -1; });
  refused("tokens", [](Calibration& c) { c.tokens = 0; });
}

TEST(CalibrationFile, AKeptFileOfAnotherVersionCountsAsNone) {
  const TemporaryFolder folder;
  const ScopedVariable home("XDG_CACHE_HOME", folder.path().c_str());
  const auto engine = load(kStories);
  const std::string path = calibration_path(*engine).value();
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  const auto bytes = encode_calibration(random_calibration(*engine)).value();
  ASSERT_TRUE(write_file(path, bytes));
  EXPECT_TRUE(find_calibration(*engine).value().has_value());
  ASSERT_TRUE(write_file(path, with_version(bytes, 4)));
  EXPECT_FALSE(find_calibration(*engine).value().has_value());
  EXPECT_FALSE(find_calibration(kStories).value().has_value());
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
