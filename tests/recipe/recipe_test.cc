// SPDX-License-Identifier: Apache-2.0
#include "recipe/recipe.h"

#include <gtest/gtest.h>

namespace kvspan {
namespace {

Recipe parsed(std::string_view text) {
  auto recipe = Recipe::parse(text);
  if (!recipe.has_value()) {
    ADD_FAILURE() << recipe.error().message;
    return *Recipe::parse("full");
  }
  return *recipe;
}

TEST(Recipe, PrintsInCanonicalForm) {
  const std::pair<std::string_view, std::string_view> cases[] = {
      {"full", "full"},
      {"full:store=f16", "full"},
      {"bands:bits=2", "bands"},
      {"bands:bits=2.50", "bands:bits=2.5"},
      {"static:rk=16,rv=32", "static:rk=16,rv=32"},
      {"static:rv=32,rk=16", "static:rk=16,rv=32"},
      {"fd:rk=d/4,rv=d/4,chunk=256,tau=0.15", "fd:tau=0.15"},
      {"fd:tau_k=0.1,tau_v=calibrated", "fd:tau_k=0.1,tau_v=calibrated"},
      {"oja:ratio=0.6,store=int8", "oja:ratio=0.6,store=int8"},
      {"oja:ratio=60%", "oja:ratio=0.6"},
      {"spectral:rk=16,rv=32,block=512", "spectral"},
      {"quant:bits=4", "quant"},
      {"quant:kbits=4,vbits=4", "quant:kbits=4,vbits=4"},
      {"quant:layout=kivi,bits=2", "quant:bits=2,rotate=none,layout=kivi"},
      {"snapkv:keep=0.5+oja:ratio=0.6", "snapkv+oja:ratio=0.6"},
      {"oja:ratio=0.6+snapkv:keep=0.25", "snapkv:keep=0.25+oja:ratio=0.6"},
      {"h2o:keep=50%+full", "h2o"},
      {"full:store=f32+h2o", "h2o+full:store=f32"},
      {"static:energy=0.95,rv=full", "static:rv=full,energy=0.95"},
      {"auto:budget=65536KiB", "auto:budget=64MiB"},
      {"auto:quality=0.005", "auto:quality=0.5%"},
      {"bands:levels=0/2/4/8,escape=0", "bands:levels=0/2/4/8,escape=0%"},
      {"quest:page=32+bands:bits=2", "quest:page=32+bands"},
      {"quest+bands", "quest+bands"},
      {"shadowkv:rank=160", "shadowkv:rank=160"},
      {"h2o:heavy=0.1,recent=0.1+spectral:store=f16",
       "h2o:heavy=0.1,recent=0.1+spectral:store=f16"},
  };
  for (const auto& [text, expected] : cases) {
    const Recipe recipe = parsed(text);
    EXPECT_EQ(recipe.text(), expected) << text;
    EXPECT_EQ(parsed(expected), recipe) << text;
  }
}

TEST(Recipe, GivesTypedValuesAndDefaults) {
  const Recipe recipe = parsed("fd:rk=full,rv=0.5,sketch=4r,tau=0.15,sink=0,gamma=sqrt");
  const RecipePart& fd = recipe.method();
  EXPECT_EQ(fd.name(), "fd");
  EXPECT_TRUE(fd.rank("rk").is_full());
  EXPECT_EQ(fd.rank("rv").resolve(64), 32);
  EXPECT_EQ(fd.rows("sketch").resolve(16), 64);
  EXPECT_EQ(fd.number("tau"), 0.15);
  EXPECT_EQ(fd.count("sink"), 0);
  EXPECT_EQ(fd.count("recent"), 128);
  EXPECT_EQ(fd.count("chunk"), 256);
  EXPECT_TRUE(fd.is_word("gamma"));
  EXPECT_EQ(fd.word("gamma"), "sqrt");
  EXPECT_EQ(fd.word("store"), "f16");
  EXPECT_FALSE(fd.on("certify"));
  EXPECT_FALSE(fd.has("energy"));
  EXPECT_TRUE(fd.given("tau"));
  EXPECT_FALSE(fd.given("chunk"));
  EXPECT_FALSE(fd.declares("bits"));
  EXPECT_EQ(recipe.selector(), nullptr);
}

TEST(Recipe, AKeyThatAnotherReplacesHasNoValue) {
  const Recipe energy = parsed("static:energy=0.95");
  EXPECT_FALSE(energy.method().has("rk"));
  EXPECT_FALSE(energy.method().has("rv"));
  EXPECT_EQ(energy.method().number("energy"), 0.95);
  const Recipe apart = parsed("bands:share=layer,kbits=2,vbits=1.5");
  EXPECT_FALSE(apart.method().has("bits"));
  EXPECT_EQ(apart.method().number("vbits"), 1.5);
  EXPECT_FALSE(parsed("fd:tau_k=0.1,tau_v=0.2").method().has("tau"));
}

TEST(Recipe, ASelectorAloneStandsBeforeFull) {
  const Recipe recipe = parsed("snapkv:keep=1024");
  ASSERT_EQ(recipe.parts().size(), 2u);
  EXPECT_EQ(recipe.selector()->amount("keep").resolve(4096), 1024);
  EXPECT_EQ(recipe.method().name(), "full");
}

TEST(Recipe, BudgetIsInBytes) {
  const Recipe recipe = parsed("auto:budget=64MiB,ctx=8192");
  EXPECT_EQ(recipe.method().bytes("budget"), 64u << 20);
  EXPECT_EQ(recipe.method().count("ctx"), 8192);
  EXPECT_EQ(parsed("auto:quality=0.5%").method().bytes("budget"), std::nullopt);
}

TEST(Recipe, DefaultsOfTheDocuments) {
  const Recipe oja = parsed("oja");
  EXPECT_EQ(oja.method().number("eta_prefill"), 0.10);
  EXPECT_EQ(oja.method().number("eta"), 0.05);
  EXPECT_EQ(oja.method().number("top"), 0.05);
  EXPECT_EQ(oja.method().count("buffer"), 32);
  EXPECT_EQ(oja.method().count("queries"), 32);
  EXPECT_EQ(oja.method().count("sink"), 32);
  EXPECT_EQ(oja.method().count("recent"), 32);
  const Recipe spectral = parsed("spectral");
  EXPECT_EQ(spectral.method().rank("rk").resolve(64), 16);
  EXPECT_EQ(spectral.method().rank("rv").resolve(64), 32);
  EXPECT_EQ(spectral.method().word("store"), "int8");
  const Recipe rotate = parsed("rotate");
  EXPECT_EQ(rotate.method().count("every"), 64);
  const Recipe quant = parsed("quant:layout=kivi");
  EXPECT_EQ(quant.method().word("rotate"), "none");
  EXPECT_EQ(parsed("quant").method().word("rotate"), "hadamard");
}

using RecipeDeathTest = ::testing::Test;
TEST(RecipeDeathTest, AskingForWhatIsNotThereIsTheCallersFault) {
  const Recipe recipe = parsed("static:energy=0.9");
  EXPECT_DEATH(recipe.method().count("bits"), "declares the key");
  EXPECT_DEATH(recipe.method().rank("rk"), "value of the kind");
  EXPECT_DEATH(recipe.method().count("store"), "value of the kind");
}

}  // namespace
}  // namespace kvspan
