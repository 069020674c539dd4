// SPDX-License-Identifier: Apache-2.0
// A decode step of one layer of SmolLM2's shape (append, attend, settle; one thread) under every
// method and selector, as the text grows: no method may slow down faster than what it reads grows.
// Made-up rows with a few strong directions. Names: recipe/tokens held. kv_bytes: of the layer.
#include <benchmark/benchmark.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "kvspan/cache.h"
#include "tests/method/synthetic.h"

namespace kvspan {
namespace {

constexpr std::array kRecipes{
    "full",
    "quant",
    "quant:bits=2,layout=kivi",
    "bands",
    "bands:ends=int8",
    "bands:calib=online",
    "static:rk=d/4,rv=d/4",
    "fd:rk=d/4,rv=d/4",
    "rotate:rk=d/4,rv=d/4",
    "oja:ratio=0.6",
    "spectral",
    "prune:keep=0.5",
    "window:size=1024",
    "streaming:size=1024",
    "h2o:keep=0.5",
    "scissorhands:keep=1024",
    "snapkv:keep=0.5",
    "quest:keep=1024,skip=0",
    "quest:keep=1024,skip=0+bands",
    "shadowkv:keep=1024,chunk=16+bands",
    "shadowkv:keep=1024",
};
constexpr std::array<std::int32_t, 4> kDepths{1024, 2048, 4096, 8192};
constexpr std::int32_t kSteps = 64, kBlock = 64;

CacheShape one_layer() {
  CacheShape shape = testing::synthetic_shape(1, 3, 64);
  shape.layers[0].query_heads = 9;
  return shape;
}

const testing::SyntheticText& text() {
  static const testing::SyntheticText all(one_layer(), kDepths.back() + kSteps, 7);
  return all;
}

const Calibration& calibration() {
  static const Calibration one = testing::SyntheticText(one_layer(), 1024, 7).calibration();
  return one;
}

// A cache that goes through the text.
class Reader {
 public:
  explicit Reader(const std::string& recipe)
      : cache_(CacheFactory::create(one_layer(), recipe, &calibration()).value().make()),
        team_(state_, 0, 1),
        scratch_(make_attention_scratch()),
        out_(9 * 64) {}

  // The next n tokens; the last of them asks.
  void step(std::int32_t n) {
    const auto check = [](const Status& status) {
      if (!status) throw std::runtime_error(status.error().message);
    };
    check(cache_->append(0, text().rows(0, at_, n), team_));
    check(cache_->attend(0, text().queries(0, at_ + n - 1, 1), {out_.data(), {1, 9, 64}}, *scratch_,
                         team_));
    check(cache_->settle(0, team_));
    at_ += n;
  }
  void read_until(std::int32_t depth) {
    while (at_ < depth) step(std::min(kBlock, depth - at_));
  }
  std::size_t bytes() const { return cache_->bytes().total; }

 private:
  std::unique_ptr<KvCache> cache_;
  TeamState state_;
  Team team_;
  std::unique_ptr<AttentionScratch, void (*)(AttentionScratch*)> scratch_;
  std::vector<float> out_;
  std::int32_t at_ = 0;
};

void decode(benchmark::State& state, const std::string& recipe, std::int32_t depth) {
  Reader reader(recipe);
  reader.read_until(depth);
  state.counters["kv_bytes"] = static_cast<double>(reader.bytes());
  for (auto _ : state) reader.step(1);
}

}  // namespace
}  // namespace kvspan

int main(int argc, char** argv) {
  for (const char* recipe : kvspan::kRecipes) {
    for (const std::int32_t depth : kvspan::kDepths) {
      const std::string name = std::string(recipe) + "/" + std::to_string(depth);
      benchmark::RegisterBenchmark(
          name.c_str(), [=](benchmark::State& state) { kvspan::decode(state, recipe, depth); })
          ->Iterations(kvspan::kSteps)
          ->Unit(benchmark::kMicrosecond);
    }
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
