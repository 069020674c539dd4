// SPDX-License-Identifier: Apache-2.0
// Layers with windows give back what these have passed, and answer as if they had not.
#include "tests/cuda/device_run.h"

namespace kvspan::testing::device_windows_test {
namespace {

constexpr const char* kBands =
    "bands:quantizer=uniform,escape=0,sink=32,recent=48,bits=2.5,grain=64";
constexpr std::int32_t kSink = 32, kRecent = 48;

CacheShape shape_of(std::vector<std::int32_t> windows) {
  CacheShape shape = synthetic_shape(static_cast<std::int32_t>(windows.size()), 2, 64);
  for (std::size_t l = 0; l < windows.size(); ++l) {
    shape.layers[l].query_heads = 8;
    shape.layers[l].window = windows[l];
  }
  return shape;
}

std::int32_t coded_of(std::int32_t tokens) {
  return tokens < kSink + kRecent + 16 ? 0 : kSink + (tokens - kSink - kRecent) / 16 * 16;
}

ErrorCode code_of(const Status& status) {
  EXPECT_FALSE(status);
  return status ? ErrorCode::kNotFound : status.error().code;
}

// A cache with no more memory than its sequences are said to need.
struct Device {
  CacheShape shape;
  std::string recipe;
  SyntheticText text, other;
  Calibration calibration;
  std::unique_ptr<DeviceCache> cache;

  explicit Device(std::vector<std::int32_t> windows, std::string recipe_text = kBands)
      : shape(shape_of(std::move(windows))),
        recipe(std::move(recipe_text)),
        text(shape, 1300, 41),
        other(shape, 1300, 42),
        calibration(text.calibration()) {
    DeviceOptions options;
    options.budget_bytes = 0;
    options.max_sequences = 3;
    options.max_tokens = 1300;
    options.rebuild_tokens = 256;
    cache = made_cache(shape, recipe, calibration, options);
  }
  // All layers, their answers one after the other.
  std::vector<float> feed(std::int32_t s, const SyntheticText& from, std::int32_t first,
                          std::int32_t n) {
    return step_layers(*cache, s, from, first, n);
  }
  // In blocks that end in the middle of tiles and pages.
  void fill(std::int32_t s, const SyntheticText& from, std::int32_t n) {
    for (std::int32_t first = 0; first < n; first += 251) {
      feed(s, from, first, std::min(251, n - first));
    }
  }
};

// Two sequences take turns, so that each takes pages that the other has given back; the answers of
// the last step of both together are held against exact attention.
void check(const std::string& recipe_text) {
  SCOPED_TRACE(recipe_text);
  Device run({130, 0, 70, 130}, recipe_text);
  ASSERT_NE(run.cache, nullptr);
  const bool bands = recipe_text.starts_with("bands");
  const SyntheticText* const texts[] = {&run.text, &run.other};
  const std::int32_t held[] = {1205, 949};
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(run.cache->add());
  for (std::int32_t first = 0; first < held[0]; first += 241) {
    for (std::int32_t s = 0; s < 2; ++s) {
      const std::int32_t n = std::min(241, held[s] - first);
      if (n > 0) run.feed(s, *texts[s], first, n);
    }
  }
  const auto recipe = cuda::device_recipe(run.shape, recipe_text, &run.calibration);
  ASSERT_TRUE(recipe);
  const DeviceStep last[] = {{0, 2}, {1, 3}};
  for (int l = 0; l < 4; ++l) {
    const auto at_layer = std::size_t(l);
    const LayerShape& layer = run.shape.layers[at_layer];
    std::vector<std::vector<std::vector<std::byte>>> tiles(2);
    for (std::int32_t s = 0; s < 2; ++s) {
      for (int g = 0; g < int(recipe->codes[at_layer].size()); ++g) {
        tiles[std::size_t(s)].push_back(run.cache->read_tiles(s, l, g).value());
      }
    }
    const std::vector<float> out = step(*run.cache, l, last, texts, held);
    std::size_t at = 0;
    for (std::int32_t s = 0; s < 2; ++s) {
      const Reference reference(layer, *texts[s], at_layer, recipe->codes[at_layer],
                                tiles[std::size_t(s)], recipe->sink, bands ? coded_of(held[s]) : 0);
      for (std::int32_t i = 0; i < last[s].tokens; ++i) {
        for (std::int32_t h = 0; h < layer.query_heads; ++h) {
          const Answer answer = reference.answer(held[s] + i, h);
          for (std::size_t k = 0; k < answer.out.size(); ++k, ++at) {
            ASSERT_NEAR(out[at], answer.out[k], answer.error[k])
                << "layer " << l << " sequence " << s << " query " << i << " head " << h
                << " number " << k;
          }
        }
      }
    }
    ASSERT_EQ(at, out.size());
  }
}

TEST(DeviceWindows, AnswersAreThoseOfWhatIsSeen) {
  KVSPAN_NEEDS_DEVICE();
  check(kBands);
  check("full");
}

TEST(DeviceWindows, BytesStayTheSameFromAWindowOn) {
  KVSPAN_NEEDS_DEVICE();
  Device run({130, 130});
  const std::int32_t a = run.cache->add().value();
  run.feed(a, run.text, 0, 512);
  const CacheBytes before = run.cache->bytes(a).value();
  run.feed(a, run.text, 512, 512);  // whole pages
  const CacheBytes after = run.cache->bytes(a).value();
  EXPECT_EQ(after.coefficients, before.coefficients);
  EXPECT_EQ(after.full_rank, before.full_rank);
  EXPECT_EQ(run.cache->used_bytes(), after.total);
  ASSERT_TRUE(run.cache->remove(a));
  EXPECT_EQ(run.cache->used_bytes(), 0u);

  Device rows({0, 100}, "full");
  const std::int32_t b = rows.cache->add().value();
  rows.fill(b, rows.text, 1280);
  // 20 pages of 64 rows of one layer; of the other those from 1280 - 64 - 99 = 1117 on.
  const std::size_t page = std::size_t{64} * 2 * (64 + 64) * 2;
  EXPECT_EQ(rows.cache->bytes(b).value().total, (20 + 3) * page);
}

TEST(DeviceWindows, MemoryForWindowsIsCountedByWhatTheyKeep) {
  KVSPAN_NEEDS_DEVICE();
  // All three sequences to their ends, all pages taken and given back many times; no call fails.
  Device run({130, 0, 70, 130});
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(run.cache->add());
    for (std::int32_t first = 0; first < 1300; first += 100) {
      for (std::int32_t s = 0; s < 3; ++s) run.feed(s, run.text, first, 100);
    }
    ASSERT_FALSE(HasFailure());
    for (std::int32_t s = 0; s < 3; ++s) ASSERT_TRUE(run.cache->remove(s));
    EXPECT_EQ(run.cache->used_bytes(), 0u);
  }
}

TEST(DeviceWindows, AForkGoesOnAsItsSourceWould) {
  KVSPAN_NEEDS_DEVICE();
  Device run({130, 0, 70});
  const std::int32_t a = run.cache->add().value(), b = run.cache->add().value();
  run.fill(a, run.text, 700);
  run.fill(b, run.text, 700);
  const std::size_t before = run.cache->used_bytes();
  const std::int32_t c = run.cache->fork(a, nullptr).value();
  EXPECT_EQ(run.cache->used_bytes(), before);
  // The source goes another way first, until its windows have passed all that both had.
  const std::vector<float> other = run.feed(a, run.other, 700, 300);
  const std::vector<float> forked = run.feed(c, run.text, 700, 300);
  const std::vector<float> apart = run.feed(b, run.text, 700, 300);
  EXPECT_EQ(forked, apart);
  EXPECT_NE(other, apart);
  ASSERT_TRUE(run.cache->remove(a));
  EXPECT_EQ(run.feed(c, run.text, 1000, 40), run.feed(b, run.text, 1000, 40));
}

TEST(DeviceWindows, WhatIsNotCodedCanBeTakenBack) {
  KVSPAN_NEEDS_DEVICE();
  Device run({130, 0, 70});
  const std::int32_t a = run.cache->add().value(), b = run.cache->add().value();
  run.fill(a, run.text, 700);
  run.fill(b, run.text, 700);
  const std::int32_t least = coded_of(700);
  EXPECT_EQ(run.cache->least_tokens(a).value(), least);
  EXPECT_EQ(code_of(run.cache->truncate(a, least - 1)), ErrorCode::kInvalidArgument);
  for (const std::int32_t s : {a, b}) ASSERT_TRUE(run.cache->truncate(s, least));
  // Another text that is taken back leaves nothing behind.
  run.feed(a, run.other, least, 20);
  ASSERT_TRUE(run.cache->truncate(a, least));
  EXPECT_EQ(run.feed(a, run.text, least, 300), run.feed(b, run.text, least, 300));
  ASSERT_TRUE(run.cache->truncate(a, 0));
  EXPECT_EQ(run.cache->bytes(a).value().total, 0u);
  const std::int32_t c = run.cache->add().value();
  EXPECT_EQ(run.feed(a, run.other, 0, 400), run.feed(c, run.other, 0, 400));
}

TEST(DeviceWindows, RowsWithoutCodesCanBeTakenBackByAPage) {
  KVSPAN_NEEDS_DEVICE();
  Device run({100, 0}, "full");
  const std::int32_t a = run.cache->add().value(), b = run.cache->add().value();
  run.feed(a, run.text, 0, 160);
  EXPECT_EQ(run.cache->least_tokens(a).value(), 1);  // no window has passed anything
  ASSERT_TRUE(run.cache->truncate(a, 0));
  run.fill(a, run.text, 700);
  run.fill(b, run.text, 700);
  EXPECT_EQ(run.cache->least_tokens(a).value(), 700 - 64);
  EXPECT_EQ(code_of(run.cache->truncate(a, 700 - 65)), ErrorCode::kInvalidArgument);
  for (const std::int32_t s : {a, b}) ASSERT_TRUE(run.cache->truncate(s, 700 - 64));
  EXPECT_EQ(run.feed(a, run.text, 636, 90), run.feed(b, run.text, 636, 90));
}

TEST(DeviceWindows, WhatIsPassedIsRefused) {
  KVSPAN_NEEDS_DEVICE();
  Device run({130, 0});
  const std::int32_t a = run.cache->add().value();
  run.fill(a, run.text, 700);
  const LayerShape& l = run.shape.layers[0];
  const std::int32_t passed = coded_of(700) - 130 + 1;
  const DeviceArray<__half> keys(std::size_t(700 * l.kv_heads * l.key_dim)),
      values(std::size_t(700 * l.kv_heads * l.value_dim));
  const auto rebuild = [&](int layer, std::int32_t first) {
    return run.cache->rebuild(layer, a, first, {keys.data()}, {values.data()}, nullptr);
  };
  EXPECT_EQ(code_of(rebuild(0, passed - 1)), ErrorCode::kInvalidArgument);
  EXPECT_TRUE(rebuild(0, passed));
  EXPECT_TRUE(rebuild(1, 0));
  const std::vector<float> zeros(std::size_t(700 * l.query_heads * l.key_dim));
  const DeviceArray<float> rows{std::span<const float>(zeros)},
      out(std::size_t(700 * l.query_heads * l.value_dim));
  const auto attend = [&](int layer, std::int32_t n) {
    const DeviceStep steps[] = {{a, n}};
    return run.cache->attend(layer, steps, {rows.data(), DeviceNumber::kF32},
                             {out.data(), DeviceNumber::kF32}, nullptr);
  };
  const std::int32_t most = 700 - coded_of(700);
  EXPECT_EQ(code_of(attend(0, most + 1)), ErrorCode::kInvalidArgument);
  EXPECT_TRUE(attend(0, most));
  EXPECT_TRUE(attend(1, most + 1));
}

// A window changes nothing of what is held of the positions that it leaves.
TEST(DeviceWindows, RebuiltRowsAreThoseOfALayerWithoutWindow) {
  KVSPAN_NEEDS_DEVICE();
  Device with({130}), without({0});
  std::vector<__half> rows[2];
  const std::int32_t first = coded_of(1100) - 130 + 1;
  int i = 0;
  for (Device* run : {&with, &without}) {
    const std::int32_t a = run->cache->add().value();
    run->fill(a, run->text, 1100);
    const LayerShape& l = run->shape.layers[0];
    const DeviceArray<__half> keys(std::size_t((1100 - first) * l.kv_heads * l.key_dim)),
        values(std::size_t((1100 - first) * l.kv_heads * l.value_dim));
    ASSERT_TRUE(run->cache->rebuild(0, a, first, {keys.data()}, {values.data()}, nullptr));
    rows[i] = keys.read();
    const std::vector<__half> more = values.read();
    rows[i].insert(rows[i].end(), more.begin(), more.end());
    ++i;
  }
  ASSERT_EQ(rows[0].size(), rows[1].size());
  for (std::size_t k = 0; k < rows[0].size(); ++k) {
    ASSERT_EQ(__half2float(rows[0][k]), __half2float(rows[1][k])) << "number " << k;
  }
}

}  // namespace
}  // namespace kvspan::testing::device_windows_test
