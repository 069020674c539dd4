// SPDX-License-Identifier: Apache-2.0
// The public cache: recipes, the three-call step, forks, truncation and the bytes it reports.
#include <gtest/gtest.h>

#include <cmath>

#include <cstring>
#include <string>
#include <vector>

#include "api/wrapped_cache.h"
#include "base/random.h"
#include "base/thread_pool.h"
#include "kvspan/cache.h"

namespace kvspan {
namespace make_cache_test {

CacheShape shape_of(int layers, int query_heads = 6, int kv_heads = 2, int key_dim = 20,
                    int value_dim = 16) {
  LayerShape layer;
  layer.query_heads = query_heads;
  layer.kv_heads = kv_heads;
  layer.key_dim = key_dim;
  layer.value_dim = value_dim;
  layer.logit_scale = 0.25f;
  CacheShape shape;
  shape.layers.assign(std::size_t(layers), layer);
  return shape;
}

std::unique_ptr<KvCache> cache_of(const CacheShape& shape, std::string_view recipe = "full") {
  auto made = make_cache(shape, recipe);
  EXPECT_TRUE(made.has_value()) << made.error().message;
  return std::move(made).value();
}

// A text of random rows; row t of layer l is the same whoever asks.
class Text {
 public:
  Text(const CacheShape& shape, std::int32_t tokens) : shape_(shape), tokens_(tokens) {
    Random random(42);
    const auto fill = [&](std::vector<float>& to, std::int32_t width) {
      to.resize(shape.layers.size() * std::size_t(tokens) * std::size_t(width));
      for (float& x : to) x = static_cast<float>(random.normal());
    };
    const LayerShape& s = shape.layers.front();
    fill(keys_, s.kv_heads * s.key_dim);
    fill(values_, s.kv_heads * s.value_dim);
    fill(queries_, s.query_heads * s.key_dim);
    for (std::int32_t t = 0; t < tokens; ++t) positions_.push_back(t);
  }

  // One step of tokens [from, to) through all layers; returns what attention gave.
  std::vector<float> step(KvCache& cache, std::int32_t from, std::int32_t to, int threads) const {
    const LayerShape& s = shape_.layers.front();
    const auto n = std::size_t(to - from);
    const auto kv = std::size_t(s.kv_heads), q = std::size_t(s.query_heads);
    const auto d = std::size_t(s.key_dim), dv = std::size_t(s.value_dim);
    std::vector<float> out(shape_.layers.size() * n * q * dv, -99.0f);
    const auto positions = std::span(positions_).subspan(std::size_t(from), n);
    const auto scratch = make_attention_scratch();
    ThreadPool pool(threads);
    pool.run([&](Team& team) {
      for (std::size_t l = 0; l < shape_.layers.size(); ++l) {
        const std::size_t row = l * std::size_t(tokens_) + std::size_t(from);
        const TensorView<const float, 3> k(keys_.data() + row * kv * d, {n, kv, d});
        const TensorView<const float, 3> v(values_.data() + row * kv * dv, {n, kv, dv});
        const TensorView<const float, 3> rows(queries_.data() + row * q * d, {n, q, d});
        const bool ok = cache.append(int(l), {k, v, positions}, team).has_value() &&
                        cache
                            .attend(int(l), {rows, positions},
                                    {out.data() + l * n * q * dv, {n, q, dv}}, *scratch, team)
                            .has_value() &&
                        cache.settle(int(l), team).has_value();
        if (!ok) ADD_FAILURE() << "a step failed";
      }
    });
    return out;
  }

 private:
  CacheShape shape_;
  std::int32_t tokens_;
  std::vector<float> keys_, values_, queries_;
  std::vector<std::int32_t> positions_;
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST(MakeCache, RecipesPrintBackInCanonicalForm) {
  EXPECT_EQ(cache_of(shape_of(1), "full")->recipe(), "full");
  EXPECT_EQ(cache_of(shape_of(1), "full:store=f16")->recipe(), "full");
  EXPECT_EQ(cache_of(shape_of(1), "full:store=f32")->recipe(), "full:store=f32");
}

TEST(MakeCache, ErrorsNameWhatWasFoundAndWhatIsAllowed) {
  const auto message = [](std::string_view recipe) {
    const auto made = make_cache(shape_of(1), recipe);
    return made.has_value() ? std::string("made") : made.error().message;
  };
  EXPECT_NE(message("fool").find("'fool'"), std::string::npos);
  EXPECT_NE(message("").find("allowed: method:key=value"), std::string::npos);
  EXPECT_NE(message("full:stor=f16").find("'stor'"), std::string::npos);
  EXPECT_NE(message("full:store").find("'store'"), std::string::npos);
  EXPECT_NE(message("full:store=int8").find("store=int8"), std::string::npos);
  EXPECT_NE(message("full:").find("allowed"), std::string::npos);
}

TEST(MakeCache, RefusesImpossibleShapes) {
  EXPECT_FALSE(make_cache({}, "full"));
  EXPECT_FALSE(make_cache(shape_of(1, 5, 2), "full"));
  EXPECT_FALSE(make_cache(shape_of(1, 0, 0), "full"));
  EXPECT_FALSE(make_cache(shape_of(1, 2, 2, 0), "full"));
  struct Fault {
    const char* words;
    void (*make)(LayerShape&);
  };
  for (const Fault& fault : {Fault{"window -1", [](LayerShape& l) { l.window = -1; }},
                             Fault{"chunk -2", [](LayerShape& l) { l.chunk = -2; }},
                             Fault{"1 numbers of alibi", [](LayerShape& l) { l.alibi = {0.5f}; }},
                             Fault{"sinks of query head 0 is nan", [](LayerShape& l) {
                                     l.sinks.assign(std::size_t(l.query_heads), NAN);
                                   }}}) {
    CacheShape shape = shape_of(2);
    fault.make(shape.layers[1]);
    const auto made = make_cache(shape, "full");
    ASSERT_FALSE(made) << fault.words;
    EXPECT_NE(made.error().message.find("layer 1"), std::string::npos);
    EXPECT_NE(made.error().message.find(fault.words), std::string::npos) << made.error().message;
  }
}

TEST(Cache, BitsDependNeitherOnThreadsNorOnHowTheTextWasSplit) {
  const CacheShape shape = shape_of(2);
  const Text text(shape, 700);
  auto at_once = cache_of(shape);
  text.step(*at_once, 0, 650, 1);
  const std::vector<float> expected = text.step(*at_once, 650, 700, 1);
  Random random(7);
  for (const int threads : {1, 2, 3, 5}) {
    auto split = cache_of(shape);
    for (std::int32_t t = 0; t < 650;) {
      const std::int32_t next = std::min(650, t + 1 + std::int32_t(random.below(300)));
      text.step(*split, t, next, threads);
      t = next;
    }
    EXPECT_EQ(split->tokens(), 650);
    EXPECT_TRUE(same_bits(text.step(*split, 650, 700, threads), expected)) << threads;
  }
}

TEST(Cache, TruncationReturnsToWhatWasBefore) {
  const CacheShape shape = shape_of(2);
  const Text text(shape, 400);
  auto cache = cache_of(shape);
  text.step(*cache, 0, 300, 1);
  const std::vector<float> expected = text.step(*cache, 300, 310, 1);
  text.step(*cache, 310, 400, 1);
  for (const std::int32_t to : {300, 290, 0}) {
    ASSERT_TRUE(cache->truncate(to));
    EXPECT_EQ(cache->tokens(), to);
    if (to < 300) text.step(*cache, to, 300, 1);
    EXPECT_TRUE(same_bits(text.step(*cache, 300, 310, 1), expected));
  }
  cache->clear();
  EXPECT_EQ(cache->tokens(), 0);
  EXPECT_EQ(cache->bytes().total, 0u);
}

TEST(Cache, ForksContinueIndependently) {
  const CacheShape shape = shape_of(2);
  const Text text(shape, 400);
  auto trunk = cache_of(shape);
  text.step(*trunk, 0, 200, 1);
  auto fork = std::move(trunk->fork().value());
  EXPECT_EQ(fork->tokens(), 200);
  EXPECT_EQ(fork->recipe(), trunk->recipe());
  // The fork goes on from an earlier position with other rows at the same indices.
  ASSERT_TRUE(fork->truncate(100));
  auto reference = cache_of(shape);
  text.step(*reference, 0, 200, 1);
  text.step(*fork, 300, 400, 1);
  EXPECT_TRUE(same_bits(text.step(*trunk, 200, 300, 1), text.step(*reference, 200, 300, 1)));
  trunk.reset();
  auto other = cache_of(shape);
  text.step(*other, 0, 100, 1);
  text.step(*other, 300, 390, 1);
  ASSERT_TRUE(fork->truncate(390));
  EXPECT_TRUE(same_bits(text.step(*fork, 390, 400, 1), text.step(*other, 390, 400, 1)));
}

TEST(Cache, BytesFollowTheFormula) {
  // 300 tokens fill segments of 32, 32, 64, 128 and part of one of 256.
  const Text text(shape_of(2, 9, 3, 64, 64), 300);
  for (const int width : {2, 4}) {
    auto cache = cache_of(shape_of(2, 9, 3, 64, 64), width == 2 ? "full" : "full:store=f32");
    EXPECT_EQ(cache->bytes().total, 0u);
    text.step(*cache, 0, 300, 2);
    EXPECT_EQ(cache->bytes().full_rank, std::size_t(2 * 512 * 3 * 128 * width));
    EXPECT_EQ(cache->bytes().total, cache->bytes().full_rank);
  }
  EXPECT_EQ(full_rank_f16_bytes(shape_of(2, 9, 3, 64, 64), 300),
            std::size_t(2 * 300 * 3 * 128 * 2));
}

// A home whose caches are the host's, each under a wrapper.
class Wrappers final : public CacheHome {
 public:
  explicit Wrappers(CacheFactory caches) : caches_(std::move(caches)) {}
  std::unique_ptr<KvCache> make() override {
    return std::make_unique<WrappedCache>(caches_.make());
  }
  std::size_t shared_bytes() const noexcept override { return 0; }
  Result<std::unique_ptr<KvCache>> take(const KvCache& host) override {
    auto copy = host.fork();
    if (!copy) return copy;
    return std::unique_ptr<KvCache>(std::make_unique<WrappedCache>(*std::move(copy)));
  }

 private:
  CacheFactory caches_;
};

TEST(Cache, WhatWasSavedIsLoadedIntoTheHome) {
  const CacheShape shape = shape_of(2);
  const Text text(shape, 120);
  const CacheFactory host = CacheFactory::create(shape, "full").value();
  const CacheFactory kept = host.kept_in(std::make_shared<Wrappers>(host));
  const auto cache = host.make();
  text.step(*cache, 0, 100, 1);
  const auto bytes = cache->save().value();
  const auto at_home = [](const KvCache& of) {
    return dynamic_cast<const WrappedCache*>(&of) != nullptr;
  };
  auto loaded = kept.load(bytes);
  ASSERT_TRUE(loaded);
  EXPECT_TRUE(at_home(**loaded));
  EXPECT_TRUE(same_bits(text.step(**loaded, 100, 120, 1), text.step(*cache, 100, 120, 1)));
  // What is there already stays; what is on the host comes home when asked to.
  const KvCache* const same = loaded->get();
  EXPECT_EQ(kept.brought_home(*std::move(loaded)).value().get(), same);
  auto outside = kept.on_host().load(bytes);
  ASSERT_TRUE(outside);
  EXPECT_FALSE(at_home(**outside));
  ASSERT_TRUE((*outside)->truncate(60));
  const auto brought = kept.brought_home(*std::move(outside));
  ASSERT_TRUE(brought);
  EXPECT_TRUE(at_home(**brought));
  EXPECT_EQ((*brought)->tokens(), 60);
  EXPECT_FALSE(at_home(*host.brought_home(host.make()).value()));
}

}  // namespace make_cache_test
}  // namespace kvspan
