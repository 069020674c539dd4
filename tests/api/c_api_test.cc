// SPDX-License-Identifier: Apache-2.0
// The C interface gives what the C++ one gives, and answers every wrong argument with a status.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/half.h"
#include "base/random.h"
#include "base/thread_pool.h"
#include "kvspan/cache.h"
#include "kvspan/calibration.h"
#include "kvspan/kvspan.h"
#include "kvspan/kvspan_moments.h"

namespace kvspan {
namespace {

kvspan_layer layer_of() {
  kvspan_layer layer = {};
  layer.struct_size = sizeof layer;
  layer.query_heads = 4;
  layer.kv_heads = 2;
  layer.key_dim = 12;
  layer.value_dim = 8;
  layer.logit_scale = 0.3f;
  return layer;
}

kvspan_factory_options options_of(const kvspan_layer& layer, const char* recipe) {
  kvspan_factory_options options = {};
  options.struct_size = sizeof options;
  options.layers = &layer;
  options.layer_count = 1;
  options.recipe = recipe;
  return options;
}

struct Factory {
  kvspan_factory* factory = nullptr;
  explicit Factory(const kvspan_factory_options& options) {
    EXPECT_EQ(kvspan_factory_create(&options, &factory), KVSPAN_OK) << kvspan_last_error();
  }
  Factory(const kvspan_layer& layer, const char* recipe) : Factory(options_of(layer, recipe)) {}
  Factory(const Factory&) = delete;
  ~Factory() { kvspan_factory_free(factory); }
};

struct Handle {
  kvspan_cache* cache = nullptr;
  explicit Handle(int threads = 1, const kvspan_layer& layer = layer_of())
      : Handle(Factory(layer, "full"), threads) {}
  Handle(const Factory& factory, int threads) {
    EXPECT_EQ(kvspan_make(factory.factory, threads, &cache), KVSPAN_OK) << kvspan_last_error();
  }
  Handle(const Handle&) = delete;
  ~Handle() { kvspan_free(cache); }
};

int take(void* context, const void* bytes, std::size_t size) {
  auto& to = *static_cast<std::vector<std::byte>*>(context);
  to.insert(to.end(), static_cast<const std::byte*>(bytes),
            static_cast<const std::byte*>(bytes) + size);
  return 0;
}

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

void expect_refused(kvspan_code status, const std::string& word) {
  EXPECT_EQ(status, KVSPAN_INVALID_ARGUMENT) << word;
  EXPECT_NE(std::string(kvspan_last_error()).find(word), std::string::npos)
      << "'" << kvspan_last_error() << "' for " << word;
}

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
  ASSERT_EQ(kvspan_append(handle.cache, 0, n, KVSPAN_F32, text.keys.data(), text.values.data(),
                          text.positions.data()),
            KVSPAN_OK);
  ASSERT_EQ(kvspan_attend(handle.cache, 0, n, KVSPAN_F32, text.queries.data(),
                          text.positions.data(), out.data()),
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
  kvspan_bytes bytes = {};
  bytes.struct_size = sizeof bytes;
  ASSERT_EQ(kvspan_get_bytes(handle.cache, &bytes), KVSPAN_OK);
  EXPECT_EQ(bytes.total, cache->bytes().total);
  EXPECT_GT(bytes.full_rank, 0u);
}

TEST(CApi, ForksAndTruncationsContinueApart) {
  const Text text(40);
  const Handle handle;
  ASSERT_EQ(kvspan_append(handle.cache, 0, 30, KVSPAN_F32, text.keys.data(), text.values.data(),
                          text.positions.data()),
            KVSPAN_OK);
  kvspan_cache* fork = nullptr;
  ASSERT_EQ(kvspan_fork(handle.cache, &fork), KVSPAN_OK);
  ASSERT_EQ(kvspan_truncate(fork, 20), KVSPAN_OK);
  EXPECT_EQ(kvspan_tokens(fork), 20);
  EXPECT_EQ(kvspan_tokens(handle.cache), 30);
  EXPECT_EQ(kvspan_append(fork, 0, 5, KVSPAN_F32, text.keys.data(), text.values.data(),
                          text.positions.data() + 20),
            KVSPAN_OK);
  EXPECT_EQ(kvspan_tokens(fork), 25);
  kvspan_free(fork);
  kvspan_free(nullptr);
}

TEST(CApi, SavedCachesLoadAndGoOnAlike) {
  const Text text(90);
  const kvspan_layer layer = layer_of();
  for (const char* recipe : {"full", "quant:group=16,sink=4,recent=16", "h2o:keep=0.5"}) {
    const Factory factory(layer, recipe);
    const Handle handle(factory, 2);
    kvspan_cache *cache = handle.cache, *copy = nullptr;
    const auto step = [&](kvspan_cache* to, std::int32_t at, std::int32_t n) {
      const auto t = std::size_t(at);
      std::vector<float> out(std::size_t(n) * 32);
      EXPECT_EQ(kvspan_append(to, 0, n, KVSPAN_F32, text.keys.data() + t * 24,
                              text.values.data() + t * 16, text.positions.data() + t),
                KVSPAN_OK);
      EXPECT_EQ(kvspan_attend(to, 0, n, KVSPAN_F32, text.queries.data() + t * 48,
                              text.positions.data() + t, out.data()),
                KVSPAN_OK);
      EXPECT_EQ(kvspan_settle(to, 0), KVSPAN_OK);
      return out;
    };
    step(cache, 0, 80);
    std::vector<std::byte> bytes;
    ASSERT_EQ(kvspan_save(cache, take, &bytes), KVSPAN_OK);
    ASSERT_EQ(kvspan_load(factory.factory, 1, bytes.data(), bytes.size(), &copy), KVSPAN_OK)
        << kvspan_last_error();
    EXPECT_EQ(kvspan_tokens(copy), 80);
    EXPECT_EQ(step(cache, 80, 1), step(copy, 80, 1)) << recipe;
    kvspan_free(copy);
    copy = cache;
    EXPECT_EQ(kvspan_load(factory.factory, 1, bytes.data(), bytes.size() - 1, &copy),
              KVSPAN_CORRUPT_DATA);
    EXPECT_EQ(copy, nullptr);
    EXPECT_NE(std::string(kvspan_last_error()).find("byte"), std::string::npos);
    const Factory other(layer, "full:store=f32");
    EXPECT_EQ(kvspan_load(other.factory, 1, bytes.data(), bytes.size(), &copy),
              KVSPAN_CORRUPT_DATA);
    EXPECT_NE(std::string(kvspan_last_error()).find("recipe"), std::string::npos);
    // A sink that is full ends the saving.
    int pieces = 0;
    EXPECT_EQ(kvspan_save(
                  cache, [](void* n, const void*, std::size_t) { return ++*static_cast<int*>(n); },
                  &pieces),
              KVSPAN_IO);
    EXPECT_EQ(pieces, 1);
    ASSERT_EQ(kvspan_clear(cache), KVSPAN_OK);
    EXPECT_EQ(kvspan_tokens(cache), 0);
    EXPECT_EQ(step(cache, 0, 20).size(), 20u * 32u);
  }
}

// f16 and bf16 rows are what the same numbers are in f32.
TEST(CApi, NarrowRowsEnterAsTheyAre) {
  const Text text(50);
  const auto narrow = [](const std::vector<float>& from, kvspan_number number,
                         std::vector<float>& wide) {
    std::vector<std::uint16_t> out;
    wide.clear();
    for (const float x : from) {
      const std::uint16_t bits = number == KVSPAN_F16 ? to_half(x).bits : to_bfloat16(x).bits;
      out.push_back(bits);
      wide.push_back(number == KVSPAN_F16 ? to_float(Half{bits}) : to_float(BFloat16{bits}));
    }
    return out;
  };
  for (const kvspan_number number : {KVSPAN_F16, KVSPAN_BF16}) {
    std::vector<float> k, v, q, out(50 * 32), expected(out.size());
    const auto nk = narrow(text.keys, number, k), nv = narrow(text.values, number, v);
    const auto nq = narrow(text.queries, number, q);
    const Handle one(2), other(2);
    const std::int32_t* at = text.positions.data();
    ASSERT_EQ(kvspan_append(one.cache, 0, 50, number, nk.data(), nv.data(), at), KVSPAN_OK);
    ASSERT_EQ(kvspan_attend(one.cache, 0, 50, number, nq.data(), at, out.data()), KVSPAN_OK);
    ASSERT_EQ(kvspan_append(other.cache, 0, 50, KVSPAN_F32, k.data(), v.data(), at), KVSPAN_OK);
    ASSERT_EQ(kvspan_attend(other.cache, 0, 50, KVSPAN_F32, q.data(), at, expected.data()),
              KVSPAN_OK);
    EXPECT_EQ(out, expected);
  }
}

// A batch does what its sequences do one by one, bit for bit, with any number of threads.
TEST(CApi, ABatchOfSequencesIsEachOfThem) {
  const Text text(60);
  const Factory factory(layer_of(), "quant:group=16,sink=4,recent=8");
  for (const int threads : {1, 2, 3}) {
    std::vector<std::unique_ptr<Handle>> batch, alone;
    for (int i = 0; i < 5; ++i) {
      batch.push_back(std::make_unique<Handle>(factory, threads));
      alone.push_back(std::make_unique<Handle>(factory, 1));
    }
    for (std::int32_t round = 0; round < 3; ++round) {
      std::vector<std::vector<float>> out(5), expected(5);
      std::vector<kvspan_part> parts(5);
      for (std::size_t i = 0; i < 5; ++i) {
        const std::int32_t n = round == 0 ? 20 + static_cast<std::int32_t>(i) : 1;
        const std::int32_t at = kvspan_tokens(batch[i]->cache);
        const auto t = std::size_t(at);
        out[i].resize(std::size_t(n) * 32);
        expected[i] = out[i];
        parts[i] = {sizeof(kvspan_part),
                    batch[i]->cache,
                    n,
                    KVSPAN_F32,
                    text.keys.data() + t * 24,
                    text.values.data() + t * 16,
                    text.queries.data() + t * 48,
                    text.positions.data() + t,
                    out[i].data()};
        ASSERT_EQ(kvspan_append(alone[i]->cache, 0, n, KVSPAN_F32, parts[i].keys, parts[i].values,
                                parts[i].positions),
                  KVSPAN_OK);
        ASSERT_EQ(kvspan_attend(alone[i]->cache, 0, n, KVSPAN_F32, parts[i].queries,
                                parts[i].positions, expected[i].data()),
                  KVSPAN_OK);
        ASSERT_EQ(kvspan_settle(alone[i]->cache, 0), KVSPAN_OK);
      }
      ASSERT_EQ(kvspan_step(0, parts.data(), 5), KVSPAN_OK) << kvspan_last_error();
      EXPECT_EQ(out, expected) << threads << " threads, round " << round;
    }
    // What is wrong with one part fails the batch, and names the part.
    kvspan_part twice[2] = {};
    for (kvspan_part& part : twice) {
      part = {sizeof(kvspan_part),
              batch[0]->cache,
              1,
              KVSPAN_F32,
              text.keys.data(),
              text.values.data(),
              text.queries.data(),
              text.positions.data() + 59,
              nullptr};
    }
    expect_refused(kvspan_step(0, twice, 2), "part 0: out");
    std::vector<float> room(32);
    twice[0].out = twice[1].out = room.data();
    expect_refused(kvspan_step(0, twice, 2), "twice");
    twice[1].cache = batch[1]->cache;
    const std::int32_t past = 0;
    twice[1].positions = &past;
    expect_refused(kvspan_step(0, twice, 2), "position 0");
  }
}

// Two layers that hold the same: the moments between them are those within one.
TEST(CApi, GathersMomentsBetweenLayers) {
  const std::int32_t n = 256;
  const Text text(n);
  const kvspan_layer layers[] = {layer_of(), layer_of()};
  kvspan_moments_options gather = {};
  gather.struct_size = sizeof gather;
  gather.layers = layers;
  gather.layer_count = 2;
  gather.window = gather.block = n;
  gather.tokens = n;
  gather.threads = 2;
  gather.neighbours = 6;
  kvspan_moments* moments = nullptr;
  expect_refused(kvspan_moments_create(&gather, &moments), "neighbours is 6; allowed: 0 to 5");
  gather.neighbours = 1;
  ASSERT_EQ(kvspan_moments_create(&gather, &moments), KVSPAN_OK) << kvspan_last_error();
  const auto add = [&](std::int32_t layer, std::int32_t count) {
    return kvspan_moments_add(moments, layer, count, KVSPAN_F32, text.keys.data(),
                              text.values.data(), text.queries.data(), text.positions.data(),
                              nullptr, 0);
  };
  expect_refused(add(1, n), "allowed now: layer 0");
  ASSERT_EQ(add(0, n), KVSPAN_OK) << kvspan_last_error();
  expect_refused(add(1, n - 1), "layer 1 has rows of 255 tokens; allowed: 256");
  ASSERT_EQ(add(1, n), KVSPAN_OK) << kvspan_last_error();
  std::vector<std::byte> calibration;
  ASSERT_EQ(kvspan_moments_finish(moments, "m", "f", take, &calibration), KVSPAN_OK)
      << kvspan_last_error();
  kvspan_moments_free(moments);
  const auto read = decode_calibration(calibration, "it").value();
  EXPECT_EQ(read.neighbours, 1);
  ASSERT_EQ(read.layers[0].cross_moments.size(), 1u);
  // The same products in the same order.
  EXPECT_EQ(read.layers[0].cross_moments[0], read.layers[0].joint_moment);
  EXPECT_TRUE(read.layers[1].cross_moments.empty());
}

// A calibration gathered from C makes bands, whose codes are designed once.
TEST(CApi, CalibratesDesignsAndKeepsCodes) {
  const std::int32_t n = 512;
  const Text text(n);
  const kvspan_layer layer = layer_of();
  kvspan_moments_options gather = {};
  gather.struct_size = sizeof gather;
  gather.layers = &layer;
  gather.layer_count = 1;
  gather.window = n;
  gather.tokens = n;
  gather.block = 128;
  gather.threads = 2;
  kvspan_moments* moments = nullptr;
  ASSERT_EQ(kvspan_moments_create(&gather, &moments), KVSPAN_OK) << kvspan_last_error();
  std::vector<std::byte> calibration;
  expect_refused(kvspan_moments_finish(moments, "m", "f", take, &calibration), "layer 0");
  for (std::size_t at = 0; at < std::size_t(n); at += 128) {
    ASSERT_EQ(kvspan_moments_add(moments, 0, 128, KVSPAN_F32, text.keys.data() + at * 24,
                                 text.values.data() + at * 16, text.queries.data() + at * 48,
                                 text.positions.data() + at, nullptr, 0),
              KVSPAN_OK)
        << kvspan_last_error();
  }
  ASSERT_EQ(kvspan_moments_finish(moments, "m", "f", take, &calibration), KVSPAN_OK)
      << kvspan_last_error();
  kvspan_moments_free(moments);
  // The mean of the values, summed here.
  const auto read = decode_calibration(calibration, "it").value();
  double sum = 0.0;
  for (std::int32_t t = 0; t < n; ++t) sum += text.values[std::size_t(t) * 16 + 5];
  EXPECT_NEAR(read.layers[0].value_mean[5], sum / n, 1e-6);

  std::int32_t needed = 0;
  ASSERT_EQ(kvspan_needs_calibration("bands", &needed), KVSPAN_OK);
  EXPECT_EQ(needed, 1);
  kvspan_factory_options options = options_of(layer, "bands:bits=3,sink=16,recent=16");
  kvspan_factory* none = nullptr;
  expect_refused(kvspan_factory_create(&options, &none), "calibration");
  options.calibration = calibration.data();
  options.calibration_size = calibration.size();
  std::size_t steps = 0;
  options.progress = [](void* to, std::size_t, std::size_t) {
    ++*static_cast<std::size_t*>(to);
    return 0;
  };
  options.progress_context = &steps;
  const Factory designed(options);
  EXPECT_GT(steps, 0u);
  options.progress = [](void*, std::size_t, std::size_t) { return 1; };
  EXPECT_EQ(kvspan_factory_create(&options, &none), KVSPAN_CANCELLED);
  std::vector<std::byte> codes;
  ASSERT_EQ(kvspan_factory_save_codes(designed.factory, take, &codes), KVSPAN_OK);
  options.calibration = nullptr;
  options.codes = codes.data();
  options.codes_size = codes.size();
  const Factory loaded(options);
  EXPECT_STREQ(kvspan_factory_recipe(loaded.factory), kvspan_factory_recipe(designed.factory));
  options.codes_size -= 1;
  EXPECT_EQ(kvspan_factory_create(&options, &none), KVSPAN_CORRUPT_DATA);
  std::vector<std::vector<float>> outs;
  for (const Factory* factory : {&designed, &loaded}) {
    const Handle handle(*factory, 2);
    std::vector<float> out(std::size_t(n) * 32);
    ASSERT_EQ(kvspan_append(handle.cache, 0, 256, KVSPAN_F32, text.keys.data(), text.values.data(),
                            text.positions.data()),
              KVSPAN_OK);
    ASSERT_EQ(kvspan_settle(handle.cache, 0), KVSPAN_OK);
    ASSERT_EQ(kvspan_attend(handle.cache, 0, 1, KVSPAN_F32, text.queries.data(),
                            text.positions.data() + 255, out.data()),
              KVSPAN_OK);
    outs.push_back(std::move(out));
  }
  EXPECT_EQ(outs[0], outs[1]);
}

// The first bytes of a structure, as a program has them that knows no fields behind them.
template <class T>
std::unique_ptr<std::byte[]> older(T of, std::size_t size) {
  of.struct_size = size;
  std::unique_ptr<std::byte[]> bytes(new std::byte[size]);
  std::memcpy(bytes.get(), &of, size);
  return bytes;
}

TEST(CApi, ServesProgramsOfOlderHeaders) {
  const std::int32_t n = 60;
  const Text text(n);
  const auto outs = [&](const kvspan_factory_options* options) {
    kvspan_factory* factory = nullptr;
    EXPECT_EQ(kvspan_factory_create(options, &factory), KVSPAN_OK) << kvspan_last_error();
    kvspan_cache* cache = nullptr;
    EXPECT_EQ(kvspan_make(factory, 1, &cache), KVSPAN_OK);
    kvspan_factory_free(factory);
    std::vector<float> out(std::size_t(n) * 32);
    for (std::int32_t layer = 0; layer < options->layer_count; ++layer) {
      EXPECT_EQ(kvspan_append(cache, layer, n, KVSPAN_F32, text.keys.data(), text.values.data(),
                              text.positions.data()),
                KVSPAN_OK);
      EXPECT_EQ(kvspan_settle(cache, layer), KVSPAN_OK);
    }
    EXPECT_EQ(kvspan_attend(cache, options->layer_count - 1, n, KVSPAN_F32, text.queries.data(),
                            text.positions.data(), out.data()),
              KVSPAN_OK);
    kvspan_free(cache);
    return out;
  };
  const kvspan_layer layer = layer_of();
  kvspan_factory_options options = options_of(layer, "quant:sink=0,recent=4");
  const std::vector<float> expected = outs(&options);
  // Two layers without soft_cap and what follows, one behind the other.
  constexpr std::size_t kLayer = offsetof(kvspan_layer, soft_cap);
  std::unique_ptr<std::byte[]> layers(new std::byte[2 * kLayer]);
  for (std::size_t i = 0; i < 2; ++i) {
    std::memcpy(layers.get() + i * kLayer, older(layer, kLayer).get(), kLayer);
  }
  options.layers = reinterpret_cast<const kvspan_layer*>(layers.get());
  options.layer_count = 2;
  const auto cut = older(options, offsetof(kvspan_factory_options, calibration));
  EXPECT_EQ(outs(reinterpret_cast<const kvspan_factory_options*>(cut.get())), expected);

  kvspan_moments_options gather = {};
  gather.layers = &layer;
  gather.layer_count = 1;
  gather.window = gather.tokens = 64;
  const auto gathers = older(gather, offsetof(kvspan_moments_options, samples));
  kvspan_moments* moments = nullptr;
  EXPECT_EQ(kvspan_moments_create(reinterpret_cast<const kvspan_moments_options*>(gathers.get()), &moments),
            KVSPAN_OK)
      << kvspan_last_error();
  kvspan_moments_free(moments);
}

TEST(CApi, ServesProgramsOfNewerHeadersThatUseNothingNew) {
  const kvspan_layer layer = layer_of();
  struct {
    kvspan_factory_options known;
    std::size_t later;
  } options = {options_of(layer, "full"), 0};
  options.known.struct_size = sizeof options;
  kvspan_factory* factory = nullptr;
  ASSERT_EQ(kvspan_factory_create(&options.known, &factory), KVSPAN_OK) << kvspan_last_error();
  kvspan_factory_free(factory);
  options.later = 1;
  EXPECT_EQ(kvspan_factory_create(&options.known, &factory), KVSPAN_UNSUPPORTED);
  EXPECT_EQ(factory, nullptr);
  EXPECT_NE(std::string(kvspan_last_error()).find("options: struct_size=" + std::to_string(sizeof options)),
            std::string::npos)
      << kvspan_last_error();
  const Handle handle;
  struct {
    kvspan_bytes known;
    std::size_t later;
  } bytes = {{}, 77};
  bytes.known.struct_size = sizeof bytes;
  ASSERT_EQ(kvspan_get_bytes(handle.cache, &bytes.known), KVSPAN_OK) << kvspan_last_error();
  EXPECT_EQ(bytes.known.struct_size, sizeof bytes);
  EXPECT_EQ(bytes.later, 0u);
}

TEST(CApi, WrongArgumentsAreAnsweredNotFatal) {
  kvspan_factory* nothing = nullptr;
  kvspan_cache* none = nullptr;
  kvspan_layer layer = layer_of();
  const auto create = [&](const char* recipe) {
    const kvspan_factory_options options = options_of(layer, recipe);
    return kvspan_factory_create(&options, &nothing);
  };
  expect_refused(create("fool"), "fool");
  expect_refused(create(nullptr), "recipe");
  kvspan_factory_options options = options_of(layer, "full");
  options.layers = nullptr;
  expect_refused(kvspan_factory_create(&options, &nothing), "layers");
  options = options_of(layer, "full");
  options.layer_count = 0;
  expect_refused(kvspan_factory_create(&options, &nothing), "no layers");
  expect_refused(kvspan_factory_create(&options, nullptr), "factory");
  expect_refused(kvspan_factory_create(nullptr, &nothing), "options");
  options.struct_size = 8;
  expect_refused(kvspan_factory_create(&options, &nothing), "options: struct_size=8");
  layer.struct_size = 0;
  expect_refused(create("full"), "layers: struct_size=0");
  layer = layer_of();
  layer.rope_dims = 4;
  expect_refused(create("full"), "rope_angles");
  layer.rope_dims = 3;
  expect_refused(create("full"), "rope_dims");
  EXPECT_EQ(nothing, nullptr);
  const Factory full(layer_of(), "full");
  expect_refused(kvspan_make(full.factory, 0, &none), "threads");
  expect_refused(kvspan_make(nullptr, 1, &none), "factory");
  expect_refused(kvspan_make(full.factory, 1, nullptr), "cache");
  EXPECT_EQ(none, nullptr);

  const Text text(10);
  const Handle handle;
  const float *k = text.keys.data(), *v = text.values.data(), *q = text.queries.data();
  const std::int32_t* at = text.positions.data();
  std::vector<float> out(10 * 32);
  expect_refused(kvspan_append(handle.cache, 1, 1, KVSPAN_F32, k, v, at), "layer 1");
  expect_refused(kvspan_append(handle.cache, 0, -1, KVSPAN_F32, k, v, at), "-1 rows");
  expect_refused(kvspan_append(handle.cache, 0, 1, KVSPAN_F32, nullptr, v, at), "keys");
  expect_refused(kvspan_append(nullptr, 0, 1, KVSPAN_F32, k, v, at), "cache");
  ASSERT_EQ(kvspan_append(handle.cache, 0, 5, KVSPAN_F32, k, v, at), KVSPAN_OK);
  expect_refused(kvspan_append(handle.cache, 0, 1, KVSPAN_F32, k, v, at + 4), "position 4");
  const std::int32_t back[] = {8, 7};
  expect_refused(kvspan_append(handle.cache, 0, 2, KVSPAN_F32, k, v, back), "position 7");
  expect_refused(kvspan_attend(handle.cache, 0, 2, KVSPAN_F32, q, back, out.data()), "position 7");
  expect_refused(kvspan_attend(handle.cache, 0, 1, KVSPAN_F32, q, at, nullptr), "out");
  expect_refused(kvspan_truncate(handle.cache, -1), "-1");
  expect_refused(kvspan_settle(handle.cache, 9), "layer 9");
  expect_refused(kvspan_fork(nullptr, &none), "cache");
  expect_refused(kvspan_get_bytes(handle.cache, nullptr), "bytes");
  kvspan_bytes unsized = {};
  expect_refused(kvspan_get_bytes(handle.cache, &unsized), "struct_size");
  expect_refused(kvspan_save(handle.cache, nullptr, nullptr), "sink");
  expect_refused(kvspan_save(nullptr, take, nullptr), "cache");
  expect_refused(kvspan_load(full.factory, 1, nullptr, 0, &none), "bytes");
  expect_refused(kvspan_load(full.factory, 1, k, 9, nullptr), "cache");
  expect_refused(kvspan_clear(nullptr), "cache");
  expect_refused(kvspan_append(handle.cache, 0, 1, static_cast<kvspan_number>(7), k, v, at),
                 "number 7");
  EXPECT_EQ(kvspan_version(), 1000u * 1u);
  EXPECT_STREQ(kvspan_version_text(), "0.1.0");
  EXPECT_EQ(kvspan_tokens(nullptr), 0);
  EXPECT_EQ(kvspan_append(handle.cache, 0, 0, KVSPAN_F32, nullptr, nullptr, nullptr), KVSPAN_OK);
  EXPECT_EQ(kvspan_tokens(handle.cache), 5);
}

}  // namespace
}  // namespace kvspan
