// SPDX-License-Identifier: Apache-2.0
// The C interface gives what the C++ one gives, and answers every wrong argument with a status.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "base/random.h"
#include "base/thread_pool.h"
#include "kvspan/cache.h"
#include "kvspan/kvspan.h"

namespace kvspan {
namespace {

kvspan_layer layer_of() {
  kvspan_layer layer = {};
  layer.query_heads = 4;
  layer.kv_heads = 2;
  layer.key_dim = 12;
  layer.value_dim = 8;
  layer.logit_scale = 0.3f;
  return layer;
}

struct Handle {
  kvspan_cache* cache = nullptr;
  explicit Handle(int threads = 1, const kvspan_layer& layer = layer_of()) {
    EXPECT_EQ(kvspan_create(&layer, 1, "full", threads, &cache), KVSPAN_OK);
  }
  ~Handle() { kvspan_free(cache); }
};

struct Text {
  std::vector<float> keys, values, queries;
  std::vector<std::int32_t> positions;
  explicit Text(std::int32_t n) {
    Random random(5);
    keys.resize(std::size_t(n) * 24);
    values.resize(std::size_t(n) * 16);
    queries.resize(std::size_t(n) * 48);
    for (auto* x : {&keys, &values, &queries}) {
      for (float& v : *x) v = static_cast<float>(random.normal());
    }
    for (std::int32_t t = 0; t < n; ++t) positions.push_back(t);
  }
};

TEST(CApi, GivesWhatTheCppInterfaceGives) {
  const std::int32_t n = 70;
  const Text text(n);
  // All that a layer can have, so that none is lost on the way.
  const std::vector<float> alibi = {0.2f, 0.1f, 0.05f, 0.0f}, sinks = {1.0f, -1.0f, 2.0f, 0.5f};
  kvspan_layer c_layer = layer_of();
  c_layer.window = 60;
  c_layer.soft_cap = 5.0f;
  c_layer.chunk = 32;
  c_layer.alibi = alibi.data();
  c_layer.sinks = sinks.data();
  const Handle handle(2, c_layer);
  std::vector<float> out(std::size_t(n) * 32), expected(out.size());
  ASSERT_EQ(kvspan_append(handle.cache, 0, n, text.keys.data(), text.values.data(),
                          text.positions.data()),
            KVSPAN_OK);
  ASSERT_EQ(
      kvspan_attend(handle.cache, 0, n, text.queries.data(), text.positions.data(), out.data()),
      KVSPAN_OK);
  ASSERT_EQ(kvspan_settle(handle.cache, 0), KVSPAN_OK);
  EXPECT_EQ(kvspan_tokens(handle.cache), n);

  LayerShape layer;
  layer.query_heads = 4;
  layer.kv_heads = 2;
  layer.key_dim = 12;
  layer.value_dim = 8;
  layer.logit_scale = 0.3f;
  layer.window = 60;
  layer.soft_cap = 5.0f;
  layer.chunk = 32;
  layer.alibi = alibi;
  layer.sinks = sinks;
  const auto cache = make_cache({{layer}}, "full").value();
  const auto scratch = make_attention_scratch();
  ThreadPool pool(1);
  pool.run([&](Team& team) {
    const std::size_t rows = std::size_t(n);
    const TensorView<const float, 3> k(text.keys.data(), {rows, 2, 12});
    const TensorView<const float, 3> v(text.values.data(), {rows, 2, 8});
    const TensorView<const float, 3> q(text.queries.data(), {rows, 4, 12});
    EXPECT_TRUE(cache->append(0, {k, v, text.positions}, team).has_value());
    EXPECT_TRUE(
        cache->attend(0, {q, text.positions}, {expected.data(), {rows, 4, 8}}, *scratch, team)
            .has_value());
    EXPECT_TRUE(cache->settle(0, team).has_value());
  });
  EXPECT_EQ(0, std::memcmp(out.data(), expected.data(), out.size() * sizeof(float)));
  kvspan_bytes bytes;
  ASSERT_EQ(kvspan_get_bytes(handle.cache, &bytes), KVSPAN_OK);
  EXPECT_EQ(bytes.total, cache->bytes().total);
  EXPECT_GT(bytes.full_rank, 0u);
}

TEST(CApi, ForksAndTruncationsContinueApart) {
  const Text text(40);
  const Handle handle;
  ASSERT_EQ(kvspan_append(handle.cache, 0, 30, text.keys.data(), text.values.data(),
                          text.positions.data()),
            KVSPAN_OK);
  kvspan_cache* fork = nullptr;
  ASSERT_EQ(kvspan_fork(handle.cache, &fork), KVSPAN_OK);
  ASSERT_EQ(kvspan_truncate(fork, 20), KVSPAN_OK);
  EXPECT_EQ(kvspan_tokens(fork), 20);
  EXPECT_EQ(kvspan_tokens(handle.cache), 30);
  EXPECT_EQ(
      kvspan_append(fork, 0, 5, text.keys.data(), text.values.data(), text.positions.data() + 20),
      KVSPAN_OK);
  EXPECT_EQ(kvspan_tokens(fork), 25);
  kvspan_free(fork);
  kvspan_free(nullptr);
}

TEST(CApi, SavedCachesLoadAndGoOnAlike) {
  const Text text(90);
  const kvspan_layer layer = layer_of();
  for (const char* recipe : {"full", "quant:group=16,sink=4,recent=16", "h2o:keep=0.5"}) {
    kvspan_cache *cache = nullptr, *copy = nullptr;
    ASSERT_EQ(kvspan_create(&layer, 1, recipe, 2, &cache), KVSPAN_OK) << kvspan_last_error();
    const auto step = [&](kvspan_cache* to, std::int32_t at, std::int32_t n) {
      const auto t = std::size_t(at);
      std::vector<float> out(std::size_t(n) * 32);
      EXPECT_EQ(kvspan_append(to, 0, n, text.keys.data() + t * 24, text.values.data() + t * 16,
                              text.positions.data() + t),
                KVSPAN_OK);
      EXPECT_EQ(kvspan_attend(to, 0, n, text.queries.data() + t * 48, text.positions.data() + t,
                              out.data()),
                KVSPAN_OK);
      EXPECT_EQ(kvspan_settle(to, 0), KVSPAN_OK);
      return out;
    };
    step(cache, 0, 80);
    std::size_t size = 0, less = 0;
    ASSERT_EQ(kvspan_save(cache, nullptr, &size), KVSPAN_OK);
    std::vector<std::byte> bytes(size);
    less = size - 1;
    EXPECT_EQ(kvspan_save(cache, bytes.data(), &less), KVSPAN_INVALID_ARGUMENT);
    EXPECT_EQ(less, size);
    EXPECT_EQ(bytes[0], std::byte{0}) << "nothing is written where there is no room";
    std::size_t more = size + 7;
    bytes.resize(more);
    ASSERT_EQ(kvspan_save(cache, bytes.data(), &more), KVSPAN_OK);
    EXPECT_EQ(more, size);
    ASSERT_EQ(kvspan_load(&layer, 1, recipe, 1, bytes.data(), size, &copy), KVSPAN_OK)
        << kvspan_last_error();
    EXPECT_EQ(kvspan_tokens(copy), 80);
    EXPECT_EQ(step(cache, 80, 1), step(copy, 80, 1)) << recipe;
    kvspan_free(copy);
    copy = cache;
    EXPECT_EQ(kvspan_load(&layer, 1, recipe, 1, bytes.data(), size - 1, &copy),
              KVSPAN_CORRUPT_DATA);
    EXPECT_EQ(copy, nullptr);
    EXPECT_NE(std::string(kvspan_last_error()).find("byte"), std::string::npos);
    EXPECT_EQ(kvspan_load(&layer, 1, "full:store=f32", 1, bytes.data(), size, &copy),
              KVSPAN_CORRUPT_DATA);
    EXPECT_NE(std::string(kvspan_last_error()).find("recipe"), std::string::npos);
    kvspan_free(cache);
  }
}

void expect_refused(kvspan_code status, const std::string& word) {
  EXPECT_EQ(status, KVSPAN_INVALID_ARGUMENT) << word;
  EXPECT_NE(std::string(kvspan_last_error()).find(word), std::string::npos)
      << "'" << kvspan_last_error() << "' for " << word;
}

TEST(CApi, WrongArgumentsAreAnsweredNotFatal) {
  kvspan_cache* none = nullptr;
  kvspan_layer layer = layer_of();
  expect_refused(kvspan_create(&layer, 1, "fool", 1, &none), "fool");
  expect_refused(kvspan_create(&layer, 1, "full", 0, &none), "threads");
  expect_refused(kvspan_create(&layer, 1, nullptr, 1, &none), "recipe");
  expect_refused(kvspan_create(nullptr, 1, "full", 1, &none), "layers");
  expect_refused(kvspan_create(&layer, 0, "full", 1, &none), "no layers");
  expect_refused(kvspan_create(&layer, 1, "full", 1, nullptr), "cache");
  layer.rope_dims = 4;
  expect_refused(kvspan_create(&layer, 1, "full", 1, &none), "rope_angles");
  layer.rope_dims = 3;
  expect_refused(kvspan_create(&layer, 1, "full", 1, &none), "rope_dims");
  EXPECT_EQ(none, nullptr);

  const Text text(10);
  const Handle handle;
  const float *k = text.keys.data(), *v = text.values.data(), *q = text.queries.data();
  const std::int32_t* at = text.positions.data();
  std::vector<float> out(10 * 32);
  expect_refused(kvspan_append(handle.cache, 1, 1, k, v, at), "layer 1");
  expect_refused(kvspan_append(handle.cache, 0, -1, k, v, at), "-1 rows");
  expect_refused(kvspan_append(handle.cache, 0, 1, nullptr, v, at), "keys");
  expect_refused(kvspan_append(nullptr, 0, 1, k, v, at), "cache");
  ASSERT_EQ(kvspan_append(handle.cache, 0, 5, k, v, at), KVSPAN_OK);
  expect_refused(kvspan_append(handle.cache, 0, 1, k, v, at + 4), "position 4");
  const std::int32_t back[] = {8, 7};
  expect_refused(kvspan_append(handle.cache, 0, 2, k, v, back), "position 7");
  expect_refused(kvspan_attend(handle.cache, 0, 2, q, back, out.data()), "position 7");
  expect_refused(kvspan_attend(handle.cache, 0, 1, q, at, nullptr), "out");
  expect_refused(kvspan_truncate(handle.cache, -1), "-1");
  expect_refused(kvspan_settle(handle.cache, 9), "layer 9");
  expect_refused(kvspan_fork(nullptr, &none), "cache");
  expect_refused(kvspan_get_bytes(handle.cache, nullptr), "bytes");
  std::size_t size = 0;
  layer = layer_of();
  expect_refused(kvspan_save(handle.cache, nullptr, nullptr), "size");
  expect_refused(kvspan_save(nullptr, nullptr, &size), "cache");
  expect_refused(kvspan_load(&layer, 1, "full", 1, nullptr, 0, &none), "bytes");
  expect_refused(kvspan_load(&layer, 1, "full", 1, k, 9, nullptr), "cache");
  expect_refused(kvspan_load(&layer, 1, nullptr, 1, k, 9, &none), "recipe");
  EXPECT_EQ(kvspan_tokens(nullptr), 0);
  EXPECT_EQ(kvspan_append(handle.cache, 0, 0, nullptr, nullptr, nullptr), KVSPAN_OK);
  EXPECT_EQ(kvspan_tokens(handle.cache), 5);
}

}  // namespace
}  // namespace kvspan
