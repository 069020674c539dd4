// SPDX-License-Identifier: Apache-2.0
// A decode step of one layer (append, attend, settle; one thread). Of SmolLM2's shape under every
// method and selector, as the text grows: no method may slow down faster than what it reads grows.
// Of Llama 3 8B's shape with 1 to 8 KV heads in one code of bands. Made-up rows with a few strong
// directions. Names: [llama/]recipe/tokens held. kv_bytes: of the layer.
#include <benchmark/benchmark.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
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
constexpr std::array kGroups{
    "full",
    "bands:share=kvgroup,heads=1",
    "bands:share=kvgroup,heads=2",
    "bands:share=kvgroup,heads=4",
    "bands:share=kv",
};
constexpr std::array<std::int32_t, 4> kDepths{1024, 2048, 4096, 8192};
constexpr std::int32_t kSteps = 64, kBlock = 64;

// A layer and rows for it.
class Model {
 public:
  Model(std::int32_t kv_heads, std::int32_t repeats, std::int32_t dim)
      : shape_(testing::synthetic_shape(1, kv_heads, dim)) {
    shape_.layers[0].query_heads = repeats * kv_heads;
  }
  const CacheShape& shape() const { return shape_; }
  const testing::SyntheticText& text() {
    if (!text_) text_.emplace(shape_, kDepths.back() + kSteps, 7);
    return *text_;
  }
  const Calibration& calibration() {
    if (!calibration_) calibration_ = testing::SyntheticText(shape_, 1024, 7).calibration();
    return *calibration_;
  }

 private:
  CacheShape shape_;
  std::optional<testing::SyntheticText> text_;
  std::optional<Calibration> calibration_;
};

// A cache that goes through the text.
class Reader {
 public:
  Reader(Model& model, const std::string& recipe)
      : model_(model),
        cache_(CacheFactory::create(model.shape(), recipe, &model.calibration()).value().make()),
        team_(state_, 0, 1),
        scratch_(make_attention_scratch()) {
    const LayerShape& layer = model.shape().layers[0];
    heads_ = static_cast<std::size_t>(layer.query_heads);
    out_.resize(heads_ * static_cast<std::size_t>(layer.value_dim));
  }

  // The next n tokens; the last of them asks.
  void step(std::int32_t n) {
    const auto check = [](const Status& status) {
      if (!status) throw std::runtime_error(status.error().message);
    };
    check(cache_->append(0, model_.text().rows(0, at_, n), team_));
    check(cache_->attend(0, model_.text().queries(0, at_ + n - 1, 1),
                         {out_.data(), {1, heads_, out_.size() / heads_}}, *scratch_, team_));
    check(cache_->settle(0, team_));
    at_ += n;
  }
  void read_until(std::int32_t depth) {
    while (at_ < depth) step(std::min(kBlock, depth - at_));
  }
  std::size_t bytes() const { return cache_->bytes().total; }

 private:
  Model& model_;
  std::unique_ptr<KvCache> cache_;
  TeamState state_;
  Team team_;
  std::unique_ptr<AttentionScratch, void (*)(AttentionScratch*)> scratch_;
  std::size_t heads_ = 0;
  std::vector<float> out_;
  std::int32_t at_ = 0;
};

void decode(benchmark::State& state, Model& model, const std::string& recipe, std::int32_t depth) {
  Reader reader(model, recipe);
  reader.read_until(depth);
  state.counters["kv_bytes"] = static_cast<double>(reader.bytes());
  for (auto _ : state) reader.step(1);
}

}  // namespace
}  // namespace kvspan

int main(int argc, char** argv) {
  using kvspan::kDepths;
  kvspan::Model smollm(3, 3, 64), llama(8, 4, 128);
  const auto add = [](kvspan::Model& model, const std::string& prefix, const std::string& recipe,
                      std::int32_t depth) {
    const std::string name = prefix + recipe + "/" + std::to_string(depth);
    benchmark::RegisterBenchmark(name.c_str(),
                                 [&model, recipe, depth](benchmark::State& state) {
                                   kvspan::decode(state, model, recipe, depth);
                                 })
        ->Iterations(kvspan::kSteps)
        ->Unit(benchmark::kMicrosecond);
  };
  for (const char* recipe : kvspan::kRecipes) {
    for (const std::int32_t depth : kDepths) add(smollm, "", recipe, depth);
  }
  for (const char* recipe : kvspan::kGroups) add(llama, "llama/", recipe, kDepths.back());
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
