// SPDX-License-Identifier: Apache-2.0
// Recipes fitted to equal bytes: the dials of all methods, the search, and the count of bytes
// against the caches of a real (if tiny) model.
#include <gtest/gtest.h>

#include <map>

#include "base/fail.h"
#include "eval/equal_bytes/byte_probe.h"
#include "eval/equal_bytes/fit_bytes.h"
#include "eval/perplexity/windows.h"
#include "io/atomic_file.h"
#include "llama/tokenizer.h"

namespace kvspan::testing {
namespace equal_bytes_test {

CacheShape two_layers() {
  LayerShape layer;
  layer.query_heads = layer.kv_heads = 2;
  layer.key_dim = layer.value_dim = 64;
  return {{layer, layer}};
}

TEST(SizeDial, OfEveryMethodWithASizeGivesRecipesThatParseAtBothEnds) {
  int dials = 0;
  for (const MethodDeclaration& method : all_methods()) {
    const Recipe recipe =
        Recipe::parse(method.kind == MethodKind::kChooser ? method.example : method.name).value();
    const auto dial = size_dial(recipe, two_layers(), 4096);
    EXPECT_EQ(dial.has_value(), !method.size_keys.empty()) << method.name;
    if (!dial) continue;
    ++dials;
    EXPECT_LT(dial->least, dial->most) << method.name;
    EXPECT_LE(dial->least, dial->start) << method.name;
    EXPECT_LE(dial->start, dial->most) << method.name;
    for (const std::int32_t step : {dial->least, dial->start, dial->most}) {
      const auto parsed = Recipe::parse(dial->recipe(step));
      ASSERT_TRUE(parsed) << parsed.error().message;
      EXPECT_EQ(parsed->text(), dial->recipe(step));
    }
  }
  EXPECT_GE(dials, 15);
}

TEST(SizeDial, TurnsTheKeysThatTheTableNames) {
  const auto at = [](const char* recipe, std::int32_t step) {
    return size_dial(Recipe::parse(recipe).value(), two_layers(), 4096)->recipe(step);
  };
  EXPECT_EQ(at("bands:share=layer", 137), "bands:bits=1.37,share=layer");
  EXPECT_EQ(at("quant", 0), "quant:bits=2");
  EXPECT_EQ(at("static:store=int8", 5), "static:rk=5,rv=5,store=int8");
  EXPECT_EQ(at("h2o", 500), "h2o:keep=500");
  EXPECT_EQ(at("quest+bands", 150), "quest+bands:bits=1.5");          // what stores the tokens
  EXPECT_EQ(at("h2o+quant:bits=2", 64), "h2o:keep=64+quant:bits=2");  // what is left open
}

TEST(SizeDial, SaysWhyThereIsNone) {
  const auto why = [](const char* recipe) {
    return size_dial(Recipe::parse(recipe).value(), two_layers(), 4096).error().message;
  };
  EXPECT_EQ(why("bands:bits=3"),
            "bands:bits=3: bands:bits=3 sets bits itself; leave it out to have it fitted");
  EXPECT_EQ(why("full"), "full: no key of full sets how many bytes it holds");
  EXPECT_NE(why("static:energy=0.9").find("another key than rk"), std::string::npos);
}

// Bytes that a made-up cache takes: so much a bit or token, and the recent ones at 16 bits.
Result<std::uint64_t> invented_bytes(const std::string& text) {
  const Recipe recipe = Recipe::parse(text).value();
  const RecipePart& method = recipe.method();
  if (method.name() == "window")
    return static_cast<std::uint64_t>(160 * method.count("size") + 900);
  const double bits = method.name() == "quant" ? static_cast<double>(method.count("bits")) + 0.5
                                               : method.number("bits");
  const double recent = static_cast<double>(method.count("recent"));
  return static_cast<std::uint64_t>(10.0 * (4096.0 - recent) * bits + 160.0 * recent);
}

TEST(FitRecipe, ComesUpToTheBytesInFewCalls) {
  constexpr double kFull = 4096 * 160.0;
  for (const char* name : {"bands", "quant", "window"}) {
    for (const double ratio : {2.1, 3.0, 4.0, 5.5}) {
      int calls = 0;
      const auto target = static_cast<std::uint64_t>(kFull / ratio);
      const auto fitted = fit_recipe(Recipe::parse(name).value(), target, two_layers(), 4096,
                                     [&](const std::string& recipe) {
                                       ++calls;
                                       return invented_bytes(recipe);
                                     });
      ASSERT_TRUE(fitted) << fitted.error().message;
      EXPECT_LE(fitted->bytes, target) << fitted->recipe;
      EXPECT_GE(static_cast<double>(fitted->bytes), 0.99 * static_cast<double>(target))
          << fitted->recipe;
      EXPECT_EQ(invented_bytes(fitted->recipe).value(), fitted->bytes);
      EXPECT_LE(calls, 12) << name << " " << ratio;
    }
  }
}

TEST(FitRecipe, PrefersTheLargerStepWithFewerRecentTokens) {
  const auto fit = [](double bits) {
    const auto target = static_cast<std::uint64_t>(10.0 * 4096 * bits);
    return fit_recipe(Recipe::parse("quant").value(), target, two_layers(), 4096, invented_bytes)
        ->recipe;
  };
  // 3.5 bits and 128 recent tokens are 3.89: a little less, and a little more.
  EXPECT_TRUE(fit(3.8).starts_with("quant:bits=3,recent=")) << fit(3.8);
  EXPECT_TRUE(fit(3.6).starts_with("quant:bits=2,recent=")) << fit(3.6);
  EXPECT_TRUE(fit(4.2).starts_with("quant:bits=3,recent=")) << fit(4.2);
}

TEST(FitRecipe, RefusesWhatCannotBeReachedWithTheNearest) {
  const auto bytes = [](const std::string& recipe) { return invented_bytes(recipe); };
  // 2.5 bits of quant:bits=2 and the recent tokens are more than 2 bits.
  const auto fitted =
      fit_recipe(Recipe::parse("quant").value(), 4096 * 20, two_layers(), 4096, bytes);
  ASSERT_FALSE(fitted);
  EXPECT_EQ(fitted.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(fitted.error().message.find("the nearest, quant:bits=2,"), std::string::npos)
      << fitted.error().message;
  // The same with more bytes allowed, as near as it is.
  const auto over = fit_recipe(Recipe::parse("quant").value(), 4096 * 20, two_layers(), 4096, bytes,
                               {.near = 0.03, .most_off = 0.5, .over = true, .spend_rest = false});
  ASSERT_TRUE(over) << over.error().message;
  EXPECT_EQ(over->recipe, "quant:bits=2");
  // What counting fails with is not hidden.
  const auto failed = fit_recipe(Recipe::parse("quant").value(), 4096 * 20, two_layers(), 4096,
                                 [](const std::string&) -> Result<std::uint64_t> {
                                   return fail(ErrorCode::kUnsupported, "not this one");
                                 });
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().message, "not this one");
}

TEST(ByteProbe, CountsWhatACacheOfTheModelHolds) {
  const std::string model = KVSPAN_SOURCE_DIR "/data/models/stories260K.gguf";
  const auto engine = Engine::load(model, {1, 64}).value();
  const auto text =
      read_file(std::string(KVSPAN_SOURCE_DIR "/data/text/tinystories_head.txt")).value();
  const auto tokenizer = Tokenizer::open(model).value();
  const auto windows =
      cut_windows(*tokenizer, {reinterpret_cast<const char*>(text.data()), text.size()},
                  {.length = 448, .most = 1, .least = 0})
          .value();
  const CacheSource source = [&](const std::string& recipe) {
    return make_cache(engine->cache_shape(), recipe);
  };
  auto probe = ByteProbe::record(*engine, windows.front(), 64).value();
  // A fifth of the layers, and the others like them.
  auto part = ByteProbe::record(*engine, windows.front(), 64, nullptr, 1 << 18).value();
  for (const char* recipe : {"full", "quant:bits=2", "window:size=128", "h2o:keep=100", "turbo",
                             "spectral:rk=4,rv=4,block=64", "snapkv:keep=0.25", "quest:keep=64,skip=0"}) {
    const auto cache = source(recipe).value();
    for (std::size_t at = 0; at < windows.front().size(); at += 64) {
      const BatchPart block{cache.get(), std::span(windows.front()).subspan(at, 64),
                            BatchPart::Logits::kLast};
      ASSERT_TRUE(engine->decode({&block, 1}));
    }
    // Where attention decides which tokens stay, rounding may keep others, in other layers too: as
    // many, but their positions may take a list where these need none.
    const CacheBytes held = cache->bytes();
    const Recipe parsed = Recipe::parse(recipe).value();
    const RecipePart* selector = parsed.selector();
    const bool drops = selector != nullptr && selector->method().tokens == TokenUse::kDropsSome;
    const double off = drops ? static_cast<double>(held.positions) : 0.0;
    for (ByteProbe* some : {&probe, &part}) {
      EXPECT_NEAR(static_cast<double>(some->bytes(recipe, source).value()),
                  static_cast<double>(held.total), off)
          << recipe;
    }
  }
  EXPECT_EQ(probe.full_bytes(), full_rank_f16_bytes(engine->cache_shape(), 448));
}

}  // namespace equal_bytes_test
}  // namespace kvspan::testing
