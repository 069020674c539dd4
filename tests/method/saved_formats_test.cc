// SPDX-License-Identifier: Apache-2.0
// Saved caches of every released format load and continue as a cache with the same history does.
// tests/method/fixtures/format<version>/ holds the files, by history and recipe: <name>.codes is
// what CacheFactory::save_codes wrote, <name>.cache what KvCache::save did. The files of a format
// are written once, before the next one replaces it:
//     method_tests --gtest_also_run_disabled_tests --gtest_filter='WriteSavedFormats.*'
//     (KVSPAN_WRITE_FORMAT=tests/method/fixtures/format<version>)
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "kvspan/cache.h"
#include "tests/method/synthetic.h"

namespace kvspan {
namespace saved_formats_test {

using testing::SyntheticText;

constexpr std::int32_t kTokens = 230;

// Layers that see everything, or a window and chunks.
CacheShape shape_of(bool windows) {
  CacheShape shape = testing::synthetic_shape(2, 1);
  for (LayerShape& layer : shape.layers) layer.rope.pairs = Rope::Pairs::kNeighbours;
  if (windows) {
    shape.layers[0].window = 40;
    shape.layers[1].chunk = 48;
  }
  return shape;
}

const SyntheticText& text_of(bool windows) {
  static const SyntheticText plain(shape_of(false), kTokens, 31), passed(shape_of(true), kTokens, 31);
  return windows ? passed : plain;
}

// What had happened to a cache when it was saved, and how it continues.
struct History {
  std::string name;
  bool windows;
  std::int32_t tokens;  // afterwards
  std::function<void(KvCache&, const SyntheticText&)> play;
};

const std::vector<History>& histories() {
  static const std::vector<History> all = {
      // Truncated within a tile and within segments; the last rows are not settled.
      {"cut", false, 97,
       [](KvCache& cache, const SyntheticText& text) {
         testing::run(cache, text, 0, 60, 30);
         testing::run(cache, text, 60, 30, 1);
         const std::int32_t cut = std::max(cache.least_tokens(), 77);
         EXPECT_TRUE(cache.truncate(cut));
         testing::run(cache, text, cut, 93 - cut, 8);
         TeamState state;
         Team team(state, 0, 1);
         for (int layer = 0; layer < 2; ++layer) {
           EXPECT_TRUE(cache.append(layer, text.rows(std::size_t(layer), 93, 4), team));
         }
       }},
      // A window and chunks have passed; with recent=0 no row waits.
      {"passed", true, 96,
       [](KvCache& cache, const SyntheticText& text) {
         testing::run(cache, text, 0, 60, 20);
         testing::run(cache, text, 60, 36, 1);
       }},
  };
  return all;
}

// At least one recipe of every method and of every kind of state.
const std::vector<std::string>& recipes() {
  static const std::vector<std::string> all = {
      "full",
      "quant:group=16,bits=4,sink=4,recent=8",
      "quant:layout=kivi,group=16,bits=2,sink=4,recent=0",
      "static:rk=6,rv=8,sink=5,recent=20",
      "static:rk=8,rv=full,sink=4,recent=8",
      "fd:rk=4,rv=4,first=full,tau=0.2,warm=20,sink=0,recent=0",
      "fd:rk=4,rv=6,chunk=64,tau=0.3,sink=5,recent=20",
      "rotate:rk=4,rv=4,every=32,sink=5,recent=8",
      "spectral:rk=4,rv=6,block=48,store=f16,sink=4,recent=8",
      "oja:rk=4,rv=6,stale=rotate,sink=4,recent=8",
      "turbo:sink=4,recent=8",
      "oscar:sink=4,recent=8",
      "kvtc:bits=4,sink=4,recent=8",
      "prune:keep=0.5,sink=4,recent=16",
      "window:size=60",
      "streaming:sink=4,size=60",
      "h2o:keep=0.5+quant:group=16,sink=4,recent=8",
      "scissorhands:keep=60,drop=10,history=20+quant:group=16,bits=2,sink=4,recent=8",
      "snapkv:keep=0.5,window=8+quant:group=16,bits=2,sink=4,recent=8",
      "quest:keep=64,page=16,skip=1+quant:group=16,bits=2,sink=4,recent=8",
      "shadowkv:keep=64,chunk=16,outliers=2+quant:group=16,bits=2,sink=4,recent=8",
      "bands:bits=3,anchor=32,sink=16,recent=32",
      "bands:bits=2,anchor=32,sink=16,recent=0,escape=10%",
      "bands:bits=2,share=head,certify=on,anchor=16,sink=0,recent=0",
      "bands:bits=3,ends=int8,anchor=32,sink=16,recent=16",
      "bands:bits=2,layers=2,anchor=32,sink=16,recent=16",
      "bands:bits=3,calib=online,learn=48,anchor=32,sink=16,recent=16",
      "bands:bits=4,calib=online,learn=48,refresh=48,ends=int8,anchor=16,sink=0,recent=0",
  };
  return all;
}

std::string file_of(const History& history, std::size_t recipe, const std::string& what) {
  return fmt::format("{}-{:02}.{}", history.name, recipe, what);
}

std::vector<std::byte> read_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  const auto view = std::as_bytes(std::span(bytes));
  return {view.begin(), view.end()};
}

void write_bytes(const std::string& path, const std::vector<std::byte>& bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  EXPECT_TRUE(file) << path;
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double sum = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += std::pow(double{a[i]} - double{b[i]}, 2.0);
  return std::sqrt(sum);
}

// What attention gives to the tokens that follow.
std::vector<float> following(KvCache& cache, const SyntheticText& text, const History& history) {
  TeamState state;
  Team team(state, 0, 1);
  for (int layer = 0; layer < 2; ++layer) EXPECT_TRUE(cache.settle(layer, team));
  std::vector<float> all = testing::run(cache, text, history.tokens, 40, 8);
  const auto last = testing::run(cache, text, history.tokens + 40, kTokens - history.tokens - 40, 1);
  all.insert(all.end(), last.begin(), last.end());
  return all;
}

class SavedFormats : public ::testing::TestWithParam<std::uint32_t> {};

// The codes are those of the machine that wrote the file, the rows of the two differ as machines round: by less than a
// tenth of what the recipe loses.
TEST_P(SavedFormats, LoadAndContinueAsACacheWithTheSameHistory) {
  const std::string folder =
      fmt::format("{}/tests/method/fixtures/format{}/", KVSPAN_SOURCE_DIR, GetParam());
  for (const History& history : histories()) {
    const SyntheticText& text = text_of(history.windows);
    const auto exact = make_cache(text.shape(), "full:store=f32").value();
    testing::run(*exact, text, 0, history.tokens, 50);
    const std::vector<float> right = following(*exact, text, history);
    for (std::size_t i = 0; i < recipes().size(); ++i) {
      SCOPED_TRACE(history.name + " " + recipes()[i]);
      const auto codes = read_bytes(folder + file_of(history, i, "codes"));
      const auto bytes = read_bytes(folder + file_of(history, i, "cache"));
      const auto factory = CacheFactory::load_codes(text.shape(), recipes()[i], codes);
      ASSERT_TRUE(factory) << factory.error().message;
      auto loaded = factory->load(bytes);
      ASSERT_TRUE(loaded) << loaded.error().message;
      const auto fresh = factory->make();
      history.play(*fresh, text);
      ASSERT_EQ((*loaded)->tokens(), history.tokens);
      const std::vector<float> a = following(**loaded, text, history), b = following(*fresh, text, history);
      EXPECT_LE(distance(a, b), 0.1 * distance(b, right) + 1e-3);
      EXPECT_EQ((*loaded)->least_tokens(), fresh->least_tokens());
      // What it writes now loads too, and truncates.
      auto again = factory->load(testing::saved(**loaded));
      ASSERT_TRUE(again) << again.error().message;
      EXPECT_TRUE((*again)->truncate(std::max((*again)->least_tokens(), kTokens - 9)));
      EXPECT_TRUE((*loaded)->truncate(std::max((*loaded)->least_tokens(), kTokens - 9)));
      EXPECT_EQ(testing::saved(**again), testing::saved(**loaded));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Versions, SavedFormats, ::testing::Values(3u));

TEST(WriteSavedFormats, DISABLED_Write) {
  const char* folder = std::getenv("KVSPAN_WRITE_FORMAT");
  ASSERT_NE(folder, nullptr) << "KVSPAN_WRITE_FORMAT names the folder to write to";
  for (const History& history : histories()) {
    const SyntheticText& text = text_of(history.windows);
    const Calibration calibration = text.calibration();
    for (std::size_t i = 0; i < recipes().size(); ++i) {
      auto factory = CacheFactory::create(text.shape(), recipes()[i], &calibration);
      ASSERT_TRUE(factory) << recipes()[i] << ": " << factory.error().message;
      const auto cache = factory->make();
      history.play(*cache, text);
      const std::string at = std::string(folder) + "/";
      write_bytes(at + file_of(history, i, "codes"), factory->save_codes().value());
      write_bytes(at + file_of(history, i, "cache"), testing::saved(*cache));
    }
  }
}

}  // namespace saved_formats_test
}  // namespace kvspan
