// SPDX-License-Identifier: Apache-2.0
// Bad input through the public interface: every row of the table is an error that says what and
// where, the cache holds what it held, and goes on as if nothing had been asked.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "base/random.h"
#include "base/thread_pool.h"
#include "kvspan/cache.h"
#include "kvspan/calibration.h"
#include "kvspan/kvspan.h"
#include "tests/method/recipes.h"
#include "tests/method/synthetic.h"

namespace kvspan {
namespace {

using testing::SyntheticText;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Call {
  int layer = 1;
  std::vector<float> keys, values, queries, out;
  std::vector<std::int32_t> positions;
  KvRows rows;
  Queries asked;
  TensorView<float, 3> to;

  Call(const SyntheticText& text, std::int32_t first, std::int32_t n) {
    rows = text.rows(1, first, n);
    asked = text.queries(1, first, n);
    const auto copy = [n](TensorView<const float, 3>& view, std::vector<float>& memory) {
      memory.assign(view.data, view.data + std::size_t(n) * view.shape[1] * view.shape[2]);
      view.data = memory.data();
    };
    copy(rows.keys, keys);
    copy(rows.values, values);
    copy(asked.rows, queries);
    positions.assign(rows.positions.begin(), rows.positions.end());
    rows.positions = asked.positions = positions;
    out.resize(std::size_t(n) * 4 * 16);
    to = {out.data(), {std::size_t(n), 4, 16}};
  }
};

struct BadCall {
  const char* name;
  bool append;
  std::function<void(Call&)> spoil;
  std::vector<std::string> words;  // in the message
};

// Calls of rows 60 .. of layer 1 into a cache that holds 0 .. 59; head h has 16 numbers.
std::vector<BadCall> bad_calls() {
  std::vector<BadCall> all = {
      {"layer beyond the last", true, [](Call& c) { c.layer = 2; }, {"layer 2", "0 to 1"}},
      {"negative layer", true, [](Call& c) { c.layer = -1; }, {"layer -1"}},
      {"fewer keys than positions", true, [](Call& c) { --c.rows.keys.shape[0]; }, {"keys are ["}},
      {"more heads", true, [](Call& c) { c.rows.keys.shape[1] = 3; }, {"keys", "3, 16"}},
      {"other dimension", true, [](Call& c) { c.rows.values.shape[2] = 15; }, {"values", "2, 15"}},
      {"no keys", true, [](Call& c) { c.rows.keys.data = nullptr; }, {"keys", "no memory"}},
      {"no values", true, [](Call& c) { c.rows.values.data = nullptr; }, {"values", "no memory"}},
      {"numbers apart", true, [](Call& c) { c.rows.keys.strides[2] = 2; }, {"keys", "stride"}},
      {"NaN in a key",
       true,
       [](Call& c) { c.keys[2 * 32 + 16 + 3] = kNan; },
       {"layer 1", "keys of row 2", "head 1", "nan at 3"}},
      {"NaN in a value",
       true,
       [](Call& c) { c.values[4 * 32 + 5] = -kNan; },
       {"layer 1", "values of row 4", "head 0", "nan at 5"}},
      {"infinite key",
       true,
       [](Call& c) { c.keys[31] = kInfinity; },
       {"keys of row 0", "head 1", "inf at 15"}},
      {"minus infinite value",
       true,
       [](Call& c) { c.values[32] = -kInfinity; },
       {"values of row 1", "head 0", "-inf at 0"}},
      {"too large for f16",
       true,
       [](Call& c) { c.values[40] = 65520.0f; },
       {"values of row 1", "65520", "f16"}},
      {"positions out of order",
       true,
       [](Call& c) { std::swap(c.positions[1], c.positions[2]); },
       {"layer 1", "position 61", "row 2", "allowed: 63"}},
      {"position repeated",
       true,
       [](Call& c) { c.positions[3] = c.positions[2]; },
       {"position 62", "row 3"}},
      {"negative position", true, [](Call& c) { c.positions[0] = -1; }, {"position -1", "row 0"}},
      {"position held",
       true,
       [](Call& c) { c.positions[0] = 59; },
       {"position 59", "row 0", "allowed: 60"}},
      {"position too large",
       true,
       [](Call& c) { c.positions.back() = 1 << 30; },
       {"position 1073741824"}},
      {"query layer", false, [](Call& c) { c.layer = 7; }, {"layer 7"}},
      {"query heads", false, [](Call& c) { c.asked.rows.shape[1] = 2; }, {"queries are ["}},
      {"query rows", false, [](Call& c) { ++c.asked.rows.shape[0]; }, {"queries are ["}},
      {"output shape", false, [](Call& c) { c.to.shape[2] = 8; }, {"outputs are ["}},
      {"no output", false, [](Call& c) { c.to.data = nullptr; }, {"outputs", "no memory"}},
      {"no queries", false, [](Call& c) { c.asked.rows.data = nullptr; }, {"queries"}},
      {"NaN in a query",
       false,
       [](Call& c) { c.queries[64 + 3 * 16 + 1] = kNan; },
       {"queries of row 1", "head 3", "nan at 1"}},
      {"query positions", false, [](Call& c) { c.positions[1] = 0; }, {"position 0", "row 1"}},
      {"negative query position", false, [](Call& c) { c.positions[0] = -5; }, {"position -5"}},
  };
  return all;
}

// Few rows are written by the leader alone, many by the whole team.
TEST(BadInput, EveryBadCallIsAnsweredAndChangesNothing) {
  const SyntheticText text(testing::synthetic_shape(), 400, 21);
  const Calibration calibration = text.calibration();
  for (const char* recipe : {"full", "fd:rk=6,rv=6,tau=0.3,sink=4,recent=8",
                             "h2o:keep=0.5+static:rk=8,rv=8,sink=4,recent=16"}) {
    const auto factory = CacheFactory::create(text.shape(), recipe, &calibration);
    ASSERT_TRUE(factory) << factory.error().message;
    for (const int threads : {1, 3}) {
      ThreadPool pool(threads);
      const auto scratch = make_attention_scratch();
      const auto cache = factory->make(), untouched = factory->make();
      testing::run(*cache, text, 0, 60, 20);
      testing::run(*untouched, text, 0, 60, 20);
      const auto before = cache->save();
      ASSERT_TRUE(before);
      for (const std::int32_t n : {6, 300}) {
        for (const BadCall& bad : bad_calls()) {
          Call call(text, 60, n);
          bad.spoil(call);
          std::vector<Status> outcomes(static_cast<std::size_t>(threads));
          pool.run([&](Team& team) {
            outcomes[static_cast<std::size_t>(team.index())] =
                bad.append ? cache->append(call.layer, call.rows, team)
                           : cache->attend(call.layer, call.asked, call.to, *scratch, team);
          });
          for (const Status& outcome : outcomes) {
            ASSERT_FALSE(outcome) << recipe << ": " << bad.name;
            EXPECT_EQ(outcome.error().code, ErrorCode::kInvalidArgument);
            for (const std::string& word : bad.words) {
              EXPECT_NE(outcome.error().message.find(word), std::string::npos)
                  << bad.name << ": '" << outcome.error().message << "' without '" << word << "'";
            }
          }
        }
      }
      pool.run([&](Team& team) {
        EXPECT_FALSE(cache->settle(2, team));
        EXPECT_FALSE(cache->settle(-1, team));
      });
      EXPECT_EQ(*cache->save(), *before) << recipe;
      EXPECT_EQ(testing::run(*cache, text, 60, 60, 1), testing::run(*untouched, text, 60, 60, 1));
    }
  }
}

TEST(BadInput, AttendBeforeAppendIsAnError) {
  const SyntheticText text(testing::synthetic_shape(), 10, 21);
  const auto cache = make_cache(text.shape(), "full").value();
  const auto scratch = make_attention_scratch();
  TeamState state;
  Team team(state, 0, 1);
  Call call(text, 0, 2);
  for (int again = 0; again < 2; ++again) {
    const Status asked = cache->attend(1, call.asked, call.to, *scratch, team);
    ASSERT_FALSE(asked);
    EXPECT_NE(asked.error().message.find("layer 1 holds no tokens"), std::string::npos);
    EXPECT_TRUE(cache->append(1, call.rows, team));
    EXPECT_TRUE(cache->attend(1, call.asked, call.to, *scratch, team));
    cache->clear();
  }
  // No rows are no tokens.
  Call none(text, 0, 0);
  EXPECT_TRUE(cache->append(1, none.rows, team));
  EXPECT_FALSE(cache->attend(1, call.asked, call.to, *scratch, team));
}

TEST(BadInput, RecipesAndCalibrationsThatDoNotFitAreRefusedByName) {
  const SyntheticText text(testing::synthetic_shape(), 100, 21);
  const SyntheticText wider(testing::synthetic_shape(2, 2, 32), 100, 21);
  const SyntheticText deeper(testing::synthetic_shape(3), 100, 21);
  const Calibration fits = text.calibration();
  const auto message = [&](const char* recipe, const Calibration* calibration) {
    const auto factory = CacheFactory::create(text.shape(), recipe, calibration);
    EXPECT_FALSE(factory) << recipe;
    return factory ? std::string() : factory.error().message;
  };
  EXPECT_NE(message("static:rk=17,rv=8", &fits).find("17"), std::string::npos);
  EXPECT_NE(message("fd:rk=8,rv=99", &fits).find("99"), std::string::npos);
  EXPECT_NE(message("oja:rk=33,rv=8,share=layer", &fits).find("33"), std::string::npos);
  EXPECT_NE(message("static:rk=8,rv=8", nullptr).find("calibration"), std::string::npos);
  for (const char* recipe : {"static:rk=8,rv=8", "full", "fd:rk=6,rv=6"}) {
    for (const SyntheticText* other : {&wider, &deeper}) {
      const Calibration calibration = other->calibration();
      EXPECT_NE(message(recipe, &calibration).find("layer"), std::string::npos) << recipe;
    }
    Calibration spoilt = fits;
    spoilt.layers[1].joint_moment[7] = kNan;
    EXPECT_NE(message(recipe, &spoilt).find("layer 1"), std::string::npos) << recipe;
  }
}

// Layers ahead of one that failed can be taken back.
TEST(BadInput, AStepThatFailedInALaterLayerCanBeTakenBack) {
  const SyntheticText text(testing::synthetic_shape(), 200, 21);
  TeamState state;
  Team team(state, 0, 1);
  const auto scratch = make_attention_scratch();
  const auto cache = make_cache(text.shape(), "full").value();
  const auto straight = make_cache(text.shape(), "full").value();
  testing::run(*cache, text, 0, 60, 20);
  testing::run(*straight, text, 0, 60, 20);
  ASSERT_TRUE(cache->append(0, text.rows(0, 60, 100), team));
  Call spoilt(text, 60, 100);
  spoilt.keys[5] = kNan;
  ASSERT_FALSE(cache->append(1, spoilt.rows, team));
  EXPECT_EQ(cache->tokens(), 60);
  ASSERT_TRUE(cache->truncate(cache->tokens()));
  EXPECT_EQ(testing::run(*cache, text, 60, 40, 10), testing::run(*straight, text, 60, 40, 10));
}

// The same for methods that have already acted on the rows: positions and counts fit again, and the
// cache steps, saves and loads.
TEST(BadInput, AStepTakenBackLeavesEveryMethodUsable) {
  const SyntheticText text(testing::synthetic_shape(), 400, 21);
  const Calibration calibration = text.calibration();
  TeamState state;
  Team team(state, 0, 1);
  const auto scratch = make_attention_scratch();
  for (const testing::SuiteRecipe& recipe : testing::suite_recipes()) {
    const auto factory = CacheFactory::create(text.shape(), recipe.text, &calibration);
    ASSERT_TRUE(factory) << factory.error().message;
    const auto cache = factory->make();
    testing::run(*cache, text, 0, 60, 20);
    for (const std::int32_t n : {1, 7, 150}) {
      const std::int32_t at = cache->tokens();
      std::vector<float> out(std::size_t(n) * 4 * 16);
      ASSERT_TRUE(cache->append(0, text.rows(0, at, n), team));
      ASSERT_TRUE(cache->attend(0, text.queries(0, at, n), {out.data(), {std::size_t(n), 4, 16}},
                                *scratch, team));
      ASSERT_TRUE(cache->settle(0, team));
      EXPECT_EQ(cache->tokens(), at);
      const Status back = cache->truncate(at);
      if (!back && recipe.text.starts_with("bands")) {
        // Tiles give no token back: refused with what is allowed, and the way out works.
        EXPECT_NE(back.error().message.find("allowed: 0, or"), std::string::npos);
        ASSERT_TRUE(cache->truncate(0));
        testing::run(*cache, text, 0, 60, 20);
        continue;
      }
      ASSERT_TRUE(back) << recipe.text;
      EXPECT_EQ(cache->tokens(), at);
      testing::run(*cache, text, at, 40, n == 7 ? 20 : 1);
      const auto saved = cache->save();
      ASSERT_TRUE(saved);
      const auto loaded = factory->load(*saved);
      ASSERT_TRUE(loaded) << recipe.text << ": " << loaded.error().message;
      EXPECT_EQ(*(*loaded)->save(), *saved);
    }
  }
}

TEST(BadInput, CCallersAreToldTheSame) {
  kvspan_layer layer = {};
  layer.struct_size = sizeof layer;
  layer.query_heads = 4;
  layer.kv_heads = 2;
  layer.key_dim = layer.value_dim = 8;
  layer.logit_scale = 0.3f;
  kvspan_factory* factory = nullptr;
  const auto create = [&](const char* recipe, std::int32_t layers) {
    kvspan_factory_options options = {};
    options.struct_size = sizeof options;
    options.layers = &layer;
    options.layer_count = layers;
    options.recipe = recipe;
    return kvspan_factory_create(&options, &factory);
  };
  kvspan_cache* cache = nullptr;
  ASSERT_EQ(create("h2o:keep=0.5", 1), KVSPAN_OK);
  ASSERT_EQ(kvspan_make(factory, 3, &cache), KVSPAN_OK);
  kvspan_factory_free(factory);
  std::vector<float> rows(20 * 16, 1.0f), queries(20 * 32, 1.0f), out(20 * 32);
  const std::vector<std::int32_t> at = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  const auto told = [](const char* words) {
    return std::string(kvspan_last_error()).find(words) != std::string::npos;
  };
  EXPECT_EQ(kvspan_attend(cache, 0, 1, KVSPAN_F32, queries.data(), at.data(), out.data()),
            KVSPAN_INVALID_ARGUMENT);
  EXPECT_TRUE(told("holds no tokens")) << kvspan_last_error();
  ASSERT_EQ(kvspan_append(cache, 0, 5, KVSPAN_F32, rows.data(), rows.data(), at.data()), KVSPAN_OK);
  std::vector<float> spoilt = rows;
  spoilt[16 + 8 + 2] = kNan;
  EXPECT_EQ(kvspan_append(cache, 0, 5, KVSPAN_F32, rows.data(), spoilt.data(), at.data() + 5),
            KVSPAN_INVALID_ARGUMENT);
  EXPECT_TRUE(told("values of row 1, head 1")) << kvspan_last_error();
  EXPECT_EQ(kvspan_tokens(cache), 5);
  const std::int32_t far[] = {INT32_MAX};
  EXPECT_EQ(kvspan_append(cache, 0, 1, KVSPAN_F32, rows.data(), rows.data(), far),
            KVSPAN_INVALID_ARGUMENT);
  EXPECT_EQ(kvspan_append(cache, 0, 1, KVSPAN_F32, rows.data(), rows.data(), at.data() + 4),
            KVSPAN_INVALID_ARGUMENT);
  EXPECT_TRUE(told("position 4")) << kvspan_last_error();
  kvspan_cache* fork = nullptr;
  ASSERT_EQ(kvspan_fork(cache, &fork), KVSPAN_OK);
  kvspan_free(cache);
  EXPECT_EQ(kvspan_append(fork, 0, 5, KVSPAN_F32, rows.data(), rows.data(), at.data() + 5),
            KVSPAN_OK);
  EXPECT_EQ(kvspan_attend(fork, 0, 1, KVSPAN_F32, queries.data(), at.data() + 9, out.data()),
            KVSPAN_OK);
  EXPECT_EQ(kvspan_settle(fork, 0), KVSPAN_OK);
  EXPECT_EQ(kvspan_tokens(fork), 10);
  kvspan_free(fork);
  EXPECT_EQ(create("fd:rk=9,rv=4", 1), KVSPAN_INVALID_ARGUMENT);
  EXPECT_TRUE(told("9")) << kvspan_last_error();
  EXPECT_EQ(create("full", -3), KVSPAN_INVALID_ARGUMENT);
  layer.logit_scale = kNan;
  EXPECT_EQ(create("full", 1), KVSPAN_INVALID_ARGUMENT);
  EXPECT_TRUE(told("logit_scale")) << kvspan_last_error();
}

}  // namespace
}  // namespace kvspan
