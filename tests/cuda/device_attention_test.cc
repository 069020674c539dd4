// SPDX-License-Identifier: Apache-2.0
// Attention on the device against exact attention to what it holds.
#include <array>

#include "tests/cuda/device_run.h"

namespace kvspan::testing {
namespace {

constexpr std::int32_t kSink = 32, kRecent = 48;

struct Case {
  std::string name, recipe;
  std::int32_t kv_heads, repeats, dim;
  std::int32_t window = 0;
  float soft_cap = 0.0f;
  float magnitude = 1.0f;
};

std::string bands(const std::string& keys) {
  return "bands:quantizer=uniform,escape=0,sink=32,recent=48," + keys;
}

std::unique_ptr<DeviceCache> make(const CacheShape& shape, const std::string& recipe,
                                  const Calibration& calibration) {
  DeviceOptions options;
  options.budget_bytes = std::size_t{64} << 20;
  options.max_sequences = 8;
  options.max_tokens = 4096;
  options.launch_tokens = 16384;
  return made_cache(shape, recipe, calibration, options);
}

std::int32_t coded_of(std::int32_t tokens) {
  return tokens < kSink + kRecent + 16 ? 0 : kSink + (tokens - kSink - kRecent) / 16 * 16;
}

// Steps of the sequences, of lengths that end in the middle of tiles and pages, and one of one
// token, layer after layer; every answer of the last call is checked.
void check(const std::string& name, const std::string& recipe_text, const CacheShape& shape) {
  const SyntheticText one(shape, 620, 11), two(shape, 620, 12), three(shape, 620, 13);
  const Calibration calibration = one.calibration();
  const auto cache = make(shape, recipe_text, calibration);
  ASSERT_NE(cache, nullptr);
  const int layers = static_cast<int>(shape.layers.size());
  const bool codes = recipe_text.starts_with("bands");
  const std::vector<std::int32_t> blocks[] = {{1, 37, 300, 211, 4}, {1}, {95, 200, 1}};
  const SyntheticText* const texts[] = {&one, &two, &three};
  std::vector<std::int32_t> held(3, 0);
  std::vector<DeviceStep> last;
  std::vector<std::int32_t> coded_before(3, 0);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(cache->add());
  // All of a sequence's blocks but the last alone, then the last of all as a batch.
  for (std::int32_t s = 0; s < 3; ++s) {
    for (std::size_t b = 0; b + 1 < blocks[s].size(); ++b) {
      const DeviceStep one_step[] = {{s, blocks[s][b]}};
      const SyntheticText* text[] = {texts[s]};
      const std::int32_t first[] = {held[std::size_t(s)]};
      for (int l = 0; l < layers; ++l) step(*cache, l, one_step, text, first);
      held[std::size_t(s)] += blocks[s][b];
    }
    coded_before[std::size_t(s)] = codes ? coded_of(held[std::size_t(s)]) : 0;
    last.push_back({s, blocks[s].back()});
  }
  const auto recipe = cuda::device_recipe(shape, recipe_text, &calibration);
  ASSERT_TRUE(recipe);
  double worst = 0.0;
  for (int l = 0; l < layers; ++l) {
    const LayerShape& layer = shape.layers[std::size_t(l)];
    const auto& layer_codes = recipe->codes[std::size_t(l)];
    // Codes of the batch's own rows come after it has attended.
    std::vector<std::vector<std::vector<std::byte>>> tiles(3);
    for (std::int32_t s = 0; s < 3; ++s) {
      for (int g = 0; g < int(layer_codes.size()); ++g) {
        tiles[std::size_t(s)].push_back(cache->read_tiles(s, l, g).value());
      }
    }
    const std::vector<float> out = step(*cache, l, last, texts, held);
    std::size_t at = 0;
    for (std::int32_t s = 0; s < 3; ++s) {
      const Reference reference(layer, *texts[s], std::size_t(l), layer_codes,
                                tiles[std::size_t(s)], recipe->sink, coded_before[std::size_t(s)]);
      for (std::int32_t i = 0; i < last[std::size_t(s)].tokens; ++i) {
        for (std::int32_t h = 0; h < layer.query_heads; ++h) {
          const Answer answer = reference.answer(held[std::size_t(s)] + i, h);
          for (std::size_t k = 0; k < answer.out.size(); ++k, ++at) {
            const double off = std::abs(double{out[at]} - answer.out[k]);
            worst = std::max(worst, off / answer.error[k]);
            ASSERT_LE(off, answer.error[k])
                << name << ": layer " << l << " sequence " << s << " query " << i << " head " << h
                << " number " << k << ": " << out[at] << " instead of " << answer.out[k];
          }
        }
      }
    }
    ASSERT_EQ(at, out.size());
  }
  std::printf("%s: worst %.3f of the bound\n", name.c_str(), worst);
}

void check(const Case& test) {
  CacheShape shape = wide_shape(test.kv_heads, test.repeats, test.dim);
  shape.layers[0].window = test.window;
  shape.layers[0].soft_cap = test.soft_cap;
  shape.layers[0].rope.magnitude = test.magnitude;
  check(test.name, test.recipe, shape);
}

TEST(DeviceAttention, FullRankIsExact) {
  KVSPAN_NEEDS_DEVICE();
  check({"full", "full", 2, 4, 64});
  check({"full, three of a head", "full", 3, 3, 64});
  check({"full, 256", "full", 1, 4, 256});
  check({"full, 96, seven of a head", "full", 2, 7, 96});
  check({"full, window", "full", 2, 4, 64, 50});
  check({"full, soft cap", "full", 2, 4, 128, 0, 3.0f});
}

// So many rows that the warps of a block share parts of them.
TEST(DeviceAttention, ManyFullRankRowsAreExact) {
  KVSPAN_NEEDS_DEVICE();
  constexpr std::int32_t kTokens = 999;
  for (const auto& [heads, repeats, dim] :
       {std::array{2, 6, 128}, {3, 3, 64}, {1, 4, 256}, {2, 9, 96}}) {
    const CacheShape shape = wide_shape(heads, repeats, dim);
    const SyntheticText text(shape, kTokens + 1, 6);
    const FilledCache filled = filled_cache("full", text, text.calibration(), shape, kTokens);
    ASSERT_NE(filled.cache, nullptr);
    const std::vector<float> out = step_layers(*filled.cache, 0, text, kTokens, 1);
    const Reference reference(shape.layers[0], text, 0, {}, {}, 0, 0);
    std::size_t at = 0;
    for (std::int32_t h = 0; h < heads * repeats; ++h) {
      const Answer answer = reference.answer(kTokens, h);
      for (std::size_t k = 0; k < answer.out.size(); ++k, ++at) {
        ASSERT_LE(std::abs(double{out[at]} - answer.out[k]), answer.error[k])
            << "head " << h << " number " << k;
      }
    }
    ASSERT_EQ(at, out.size());
  }
}

TEST(DeviceAttention, CodesOfTwoBits) {
  KVSPAN_NEEDS_DEVICE();
  check({"two bits, 6 chunks", bands("share=kvgroup,bits=1.55,levels=0/2,grain=64"), 4, 4, 128});
  check({"two bits, 7 chunks", bands("share=kvgroup,bits=1.7,levels=0/2"), 4, 4, 128});
  check({"two bits, 9 chunks", bands("bits=2.2,levels=0/2/4/6/8"), 2, 4, 128});
  check({"two bits, 8 chunks", bands("bits=2,levels=2,grain=64"), 2, 4, 128});
  check({"two bits, 4 chunks", bands("bits=2,levels=2,grain=64"), 2, 4, 64});
  for (const char* const bits : {"2.2", "2.5", "2.75", "3", "3.25", "3.75"}) {
    check({"six of a head, " + std::string(bits) + " bits",
           bands("levels=0/2/4/6/8,bits=" + std::string(bits)), 2, 6, 128});
  }
}

TEST(DeviceAttention, CodesOfMixedWidths) {
  KVSPAN_NEEDS_DEVICE();
  check({"all levels", bands("bits=2.5"), 2, 4, 64});
  check({"wide codes", bands("bits=3.25"), 2, 4, 128});
  check({"narrow codes", bands("bits=1,levels=0-3,grain=64"), 2, 4, 128});
  check({"one head of 256", bands("bits=2"), 1, 4, 256});
  check({"even widths", bands("bits=2,levels=0/2/4/6/8"), 2, 4, 128});
  check({"three heads of 64", bands("bits=2"), 3, 3, 64});
  check({"four heads", bands("bits=2,share=kvgroup,heads=4,levels=0/2/4/6/8"), 4, 4, 128});
  check({"four heads, all widths", bands("bits=2,share=kvgroup,heads=4"), 4, 4, 64});
  check({"eight heads", bands("bits=2,share=kvgroup,heads=8,levels=0/2/4/6/8"), 8, 4, 64});
  check({"no gain", bands("bits=2,gain=none"), 2, 4, 64});
}

// Layers share kernels and working memory: one whose codes are wide is followed by narrow ones, and
// comes after them. Groups have fewer queries than their kernel has places for.
TEST(DeviceAttention, LayersOfDifferentWidths) {
  KVSPAN_NEEDS_DEVICE();
  CacheShape shape = wide_shape(3, 3, 64);
  for (const std::int32_t dim : {48, 32, 64}) {
    shape.layers.push_back(wide_shape(3, 3, dim).layers[0]);
  }
  check("layers of 64, 48, 32, 64", bands("bits=2,levels=2,grain=64"), shape);
  check("layers of mixed widths", bands("bits=2.25,grain=64"), shape);
}

TEST(DeviceAttention, WindowsCapsAndAnchors) {
  KVSPAN_NEEDS_DEVICE();
  check({"window", bands("bits=2.5,grain=64"), 2, 4, 64, 130});
  check({"window within the recent rows", bands("bits=2.5,grain=64"), 2, 4, 64, 20});
  check({"soft cap", bands("bits=2.5,grain=64"), 2, 4, 64, 0, 3.0f});
  check({"anchor 128", bands("bits=2.5,anchor=128"), 2, 4, 64});
  check({"anchor 1024", bands("bits=2.5,anchor=1024"), 2, 4, 64});
  check({"magnitude", bands("bits=2.5,grain=64"), 2, 4, 64, 0, 0.0f, 1.2f});
}

}  // namespace
}  // namespace kvspan::testing
