// SPDX-License-Identifier: Apache-2.0
// Sequences that are saved and loaded, by the device and by the host.
#include "kvspan/cuda_home.h"
#include "kvspan/saved_cache.h"
#include "method/method_cache.h"
#include "tests/cuda/device_run.h"

namespace kvspan::testing {
namespace device_saved_test {

constexpr const char* kBands =
    "bands:quantizer=uniform,escape=0,sink=32,recent=48,bits=2.5,grain=64,share=kvgroup,heads=1";
constexpr const char* kRecipes[] = {
    kBands, "full", "bands:quantizer=uniform,escape=0,sink=16,recent=20,bits=3",
    "bands:quantizer=uniform,escape=0,sink=0,bits=1.55,levels=0/2,grain=64"};

// Windows of the two layers; 0: none.
struct Device {
  CacheShape shape;
  SyntheticText text, other;
  Calibration calibration;
  CacheFactory factory;
  std::unique_ptr<DeviceCache> cache;

  explicit Device(const std::string& recipe, std::int32_t first_window = 0,
                  std::int32_t second_window = 0, std::int32_t max_tokens = 1024,
                  std::size_t budget = std::size_t{64} << 20)
      : shape([&] {
          CacheShape s = synthetic_shape(2, 2, 64);
          for (LayerShape& l : s.layers) l.query_heads = 8;
          s.layers[0].window = first_window;
          s.layers[1].window = second_window;
          return s;
        }()),
        text(shape, 700, 31),
        other(shape, 700, 32),
        calibration(text.calibration()),
        factory(CacheFactory::create(shape, recipe, &calibration).value()) {
    DeviceOptions options;
    options.budget_bytes = budget;
    options.max_sequences = 4;
    options.max_tokens = max_tokens;
    auto made = DeviceCache::create(factory, options);
    EXPECT_TRUE(made) << (made ? "" : made.error().message);
    if (made) cache = std::move(*made);
  }
  // Both layers; the answers of both.
  std::vector<float> feed(std::int32_t s, const SyntheticText& from, std::int32_t first,
                          std::int32_t n) {
    return step_layers(*cache, s, from, first, n);
  }
  std::vector<std::byte> saved(std::int32_t s) const {
    std::vector<std::byte> bytes;
    const Status status = cache->save(
        s,
        [&](std::span<const std::byte> piece) -> Status {
          bytes.insert(bytes.end(), piece.begin(), piece.end());
          return {};
        },
        nullptr);
    EXPECT_TRUE(status) << (status ? "" : status.error().message);
    return bytes;
  }
  std::int32_t loaded(std::span<const std::byte> bytes) {
    const auto number = cache->load(bytes, nullptr);
    EXPECT_TRUE(number) << (number ? "" : number.error().message);
    return number ? *number : -1;
  }
  std::vector<std::byte> host_bytes(std::int32_t tokens, std::int32_t block) const {
    const auto host = factory.make();
    run(*host, text, 0, tokens, block);
    return host->save().value();
  }
};

TEST(DeviceSaved, TheHostsBytesComeBack) {
  KVSPAN_NEEDS_DEVICE();
  for (const char* recipe : kRecipes) {
    for (const auto& [first, second] : {std::pair(0, 0), std::pair(0, 100), std::pair(100, 300)}) {
      Device run(recipe, first, second);
      ASSERT_NE(run.cache, nullptr);
      for (const std::int32_t tokens : {1, 31, 149, 320, 613}) {
        SCOPED_TRACE(fmt::format("{} windows {} {} tokens {}", recipe, first, second, tokens));
        const std::vector<std::byte> bytes = run.host_bytes(tokens, 50);
        const std::int32_t s = run.loaded(bytes);
        ASSERT_GE(s, 0);
        EXPECT_EQ(run.cache->tokens(s).value(), tokens);
        EXPECT_TRUE(run.saved(s) == bytes);
        ASSERT_TRUE(run.cache->remove(s));
      }
      EXPECT_EQ(run.cache->used_bytes(), 0u);
    }
  }
}

TEST(DeviceSaved, ALoadedSequenceGoesOnAsTheSavedOne) {
  KVSPAN_NEEDS_DEVICE();
  for (const char* recipe : kRecipes) {
    for (const std::int32_t window : {0, 100}) {
      SCOPED_TRACE(fmt::format("{} window {}", recipe, window));
      Device run(recipe, 0, window);
      ASSERT_NE(run.cache, nullptr);
      // Pages that were another's before.
      const std::int32_t before = run.cache->add().value();
      run.feed(before, run.other, 0, 500);
      ASSERT_TRUE(run.cache->remove(before));
      const std::int32_t a = run.cache->add().value();
      run.feed(a, run.text, 0, 7);
      run.feed(a, run.text, 7, 330);
      const std::vector<std::byte> bytes = run.saved(a);
      const std::int32_t b = run.loaded(bytes);
      ASSERT_GE(b, 0);
      EXPECT_TRUE(run.saved(b) == bytes);
      EXPECT_EQ(run.feed(b, run.text, 337, 90), run.feed(a, run.text, 337, 90));
      EXPECT_EQ(run.feed(b, run.text, 427, 1), run.feed(a, run.text, 427, 1));
      EXPECT_TRUE(run.saved(b) == run.saved(a));
      // Independent of each other, and of forks.
      const std::int32_t c = run.cache->fork(b, nullptr).value();
      run.feed(b, run.other, 428, 60);
      EXPECT_EQ(run.feed(c, run.text, 428, 60), run.feed(a, run.text, 428, 60));
      EXPECT_TRUE(run.saved(c) == run.saved(a));
    }
  }
}

// The codes themselves, one by one.
TEST(DeviceSaved, TheHostReadsTheDevicesCodes) {
  KVSPAN_NEEDS_DEVICE();
  Device run(kBands);
  ASSERT_NE(run.cache, nullptr);
  const std::int32_t s = run.cache->add().value();
  run.feed(s, run.text, 0, 400);
  const auto host = run.factory.load(run.saved(s));
  ASSERT_TRUE(host) << host.error().message;
  EXPECT_EQ((*host)->tokens(), 400);
  const auto codes = cuda::device_recipe(run.shape, kBands, &run.calibration).value().codes;
  for (int layer = 0; layer < 2; ++layer) {
    const auto& group_codes = codes[std::size_t(layer)];
    const LayerTokens tokens = static_cast<const MethodCache&>(**host).give(layer).value();
    ASSERT_EQ(tokens.coded, 352);  // 32 + (400 - 80) / 16 * 16
    const std::vector<cuda::BandsTiles> layouts = layouts_of(group_codes);
    for (std::size_t g = 0; g < group_codes.size(); ++g) {
      const std::vector<std::byte> tiles = run.cache->read_tiles(s, layer, int(g)).value();
      const auto places = std::size_t(group_codes[g]->places());
      for (std::int32_t t = 32; t < 352; ++t) {
        const std::byte* tile = tiles.data() + std::size_t(t / 32) * layouts[g].tile_bytes();
        const auto token = std::size_t(t - 32);
        ASSERT_EQ(tokens.groups[g].gains[token], layouts[g].gain(tile, t % 32));
        for (std::size_t p = 0; p < group_codes[g]->layout().stored(); ++p) {
          ASSERT_EQ(tokens.groups[g].codes[token * places + p],
                    layouts[g].get(tile, t % 32, int(p)));
        }
      }
    }
    // Rows too.
    const KvRows rows = run.text.rows(std::size_t(layer), 352, 48);
    for (std::size_t t = 0; t < 48; ++t) {
      for (std::size_t i = 0; i < 64; ++i) {
        ASSERT_EQ(tokens.groups[1].values[(32 + t) * 64 + i].bits,
                  to_half(rows.values.row(t, 1)[i]).bits);
      }
    }
  }
}

// A cache that the host has filled answers on the device as its codes say.
TEST(DeviceSaved, TheDeviceAttendsToTheHostsCodes) {
  KVSPAN_NEEDS_DEVICE();
  for (const auto& [first, second] : {std::pair(0, 0), std::pair(100, 200)}) {
    Device run(kBands, first, second);
    ASSERT_NE(run.cache, nullptr);
    const std::int32_t s = run.loaded(run.host_bytes(500, 33));
    ASSERT_GE(s, 0);
    const auto recipe = cuda::device_recipe(run.shape, kBands, &run.calibration).value();
    const DeviceStep steps[] = {{s, 3}};
    const SyntheticText* const texts[] = {&run.text};
    const std::int32_t firsts[] = {500};
    for (int layer = 0; layer < 2; ++layer) {
      const auto l = std::size_t(layer);
      std::vector<std::vector<std::byte>> tiles;
      for (int g = 0; g < int(recipe.codes[l].size()); ++g) {
        tiles.push_back(run.cache->read_tiles(s, layer, g).value());
      }
      const std::vector<float> out = step(*run.cache, layer, steps, texts, firsts);
      const std::int32_t coded = 32 + (500 - 80) / 16 * 16;
      const Reference reference(run.shape.layers[l], run.text, l, recipe.codes[l], tiles, 32,
                                coded);
      std::size_t at = 0;
      for (std::int32_t i = 0; i < 3; ++i) {
        for (std::int32_t h = 0; h < 8; ++h) {
          const Answer answer = reference.answer(500 + i, h);
          for (std::size_t k = 0; k < answer.out.size(); ++k, ++at) {
            ASSERT_NEAR(out[at], answer.out[k], answer.error[k]) << "layer " << layer;
          }
        }
      }
    }
  }
}

// The host had forgotten what windows passed: a sequence cannot go back to where it was seen.
TEST(DeviceSaved, WhatWindowsPassedIsMissed) {
  KVSPAN_NEEDS_DEVICE();
  Device run("full", 0, 100);
  ASSERT_NE(run.cache, nullptr);
  const auto host = run.factory.make();
  testing::run(*host, run.text, 0, 500, 50);
  const std::int32_t s = run.loaded(host->save().value());
  ASSERT_GE(s, 0);
  const std::int32_t least = run.cache->least_tokens(s).value();
  EXPECT_EQ(least, host->least_tokens());
  EXPECT_GT(least, 400);
  const Status refused = run.cache->truncate(s, least - 1);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  ASSERT_TRUE(run.cache->truncate(s, least));
  ASSERT_TRUE(host->truncate(least));
  EXPECT_TRUE(run.saved(s) == host->save().value());
  ASSERT_TRUE(run.cache->truncate(s, 0));
  EXPECT_EQ(run.cache->least_tokens(s).value(), 1);
}

TEST(DeviceSaved, WrongBytesAreRefusedAndTakeNothing) {
  KVSPAN_NEEDS_DEVICE();
  Device run(kBands, 0, 0, 256);
  ASSERT_NE(run.cache, nullptr);
  const auto refusal = [&](std::span<const std::byte> bytes) {
    const auto loaded = run.cache->load(bytes, nullptr);
    EXPECT_FALSE(loaded);
    EXPECT_EQ(run.cache->used_bytes(), 0u);
    return loaded ? std::optional<ErrorCode>() : loaded.error().code;
  };
  EXPECT_EQ(refusal(run.host_bytes(300, 50)), ErrorCode::kOutOfBudget);  // max_tokens
  std::vector<std::byte> damaged = run.host_bytes(200, 50);
  damaged[damaged.size() / 2] ^= std::byte{1};
  EXPECT_EQ(refusal(damaged), ErrorCode::kCorruptData);
  const Device other("full");
  EXPECT_EQ(refusal(other.host_bytes(20, 20)), ErrorCode::kCorruptData);
  EXPECT_FALSE(run.cache->save(
      0, [](std::span<const std::byte>) { return Status(); }, nullptr));
  // All four sequences are still there to be had.
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(run.cache->add());
  EXPECT_EQ(refusal(run.host_bytes(20, 20)), ErrorCode::kOutOfBudget);
}

TEST(DeviceSaved, ASpentBudgetIsAnErrorAndTakesNothing) {
  KVSPAN_NEEDS_DEVICE();
  Device run("full", 0, 0, 1024, std::size_t{256} << 10);
  ASSERT_NE(run.cache, nullptr);
  const auto loaded = run.cache->load(run.host_bytes(600, 100), nullptr);
  ASSERT_FALSE(loaded);
  EXPECT_EQ(loaded.error().code, ErrorCode::kOutOfBudget);
  EXPECT_EQ(run.cache->used_bytes(), 0u);
  EXPECT_GE(run.loaded(run.host_bytes(60, 100)), 0);
}

// As programs have them: caches of a factory that is kept on the device.
TEST(DeviceSaved, CachesOfAHomeAreSavedAndLoaded) {
  KVSPAN_NEEDS_DEVICE();
  Device run(kBands);
  DeviceOptions options;
  options.budget_bytes = std::size_t{64} << 20;
  options.max_sequences = 4;
  options.max_tokens = 1024;
  const auto home = DeviceHome::create(run.factory, options);
  ASSERT_TRUE(home) << home.error().message;
  const CacheFactory on_device = run.factory.kept_in(*home);
  const std::vector<std::byte> empty = run.factory.make()->save().value();
  EXPECT_TRUE(on_device.make()->save().value() == empty);
  ASSERT_TRUE(on_device.load(empty));

  const auto host = run.factory.make();
  testing::run(*host, run.text, 0, 400, 50);
  const SavedCache saved = save_with_runs(*host).value();
  const auto loaded = on_device.load(saved.bytes);
  ASSERT_TRUE(loaded) << loaded.error().message;
  EXPECT_EQ(DeviceHome::of(**loaded), *home);
  EXPECT_EQ((*loaded)->tokens(), 400);
  const SavedCache again = save_with_runs(**loaded).value();
  EXPECT_TRUE(again.bytes == saved.bytes);
  ASSERT_EQ(again.runs.size(), saved.runs.size());
  ASSERT_GT(again.runs.size(), 0u);
  for (std::size_t i = 0; i < saved.runs.size(); ++i) {
    EXPECT_EQ(again.runs[i].offset, saved.runs[i].offset);
    EXPECT_EQ(again.runs[i].bytes, saved.runs[i].bytes);
    EXPECT_EQ(again.runs[i].end, saved.runs[i].end);
  }
  // What the host has cut goes on as well, anywhere among its codes.
  auto cut = on_device.on_host().load(saved.bytes);
  ASSERT_TRUE(cut);
  ASSERT_TRUE((*cut)->truncate(150));
  const auto brought = on_device.brought_home(*std::move(cut));
  ASSERT_TRUE(brought) << brought.error().message;
  EXPECT_EQ(DeviceHome::of(**brought), *home);
  EXPECT_EQ((*brought)->tokens(), 150);
  testing::run(**brought, run.text, 150, 60, 20);
  EXPECT_EQ((*brought)->tokens(), 210);
  // Goes on here and there: rows are the same, and codes nearly (device_codes_test.cc).
  testing::run(**loaded, run.text, 400, 9, 3);
  const auto back = run.factory.load((*loaded)->save().value());
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_EQ((*back)->tokens(), 409);
}

}  // namespace device_saved_test
}  // namespace kvspan::testing
