// SPDX-License-Identifier: Apache-2.0
// Recipes as people mistype them: each is refused with the words that help to mend it.
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "recipe/recipe.h"

namespace kvspan {
namespace {

struct BadRecipe {
  std::string_view text;
  std::vector<std::string_view> words;  // all of them appear in the message
};

const std::vector<BadRecipe>& bad_recipes() {
  static const std::vector<BadRecipe> list{
      // The form.
      {"", {"nothing is written", "quant:bits=4"}},
      {" full", {"character 1", "blank"}},
      {"static: rk=16", {"character 8", "blank"}},
      {"static\n", {"character 7"}},
      {"static:", {"static has an empty key", "static:rk="}},
      {"static:rk=16,", {"empty key"}},
      {"static:,rk=16", {"empty key"}},
      {"static:rk=16,,rv=16", {"empty key"}},
      {"+", {"part 1 is empty", "'+' joins"}},
      {"full+", {"part 2 is empty"}},
      {"snapkv++oja", {"part 2 is empty"}},
      {"static:rk", {"'rk' of static has no '='", "d/4"}},
      {"static:16", {"'16' of static has no '='", "key=value"}},
      {"static:=16", {"static has no key ''"}},
      {"static:rk=", {"rk=;", "allowed: full"}},
      {"static:rk=16=17", {"rk=16=17", "allowed"}},
      {"static:rk=16:rv=16", {"rk=16:rv=16", "allowed"}},
      {"bands:levels=0-6,8", {"'8' of bands has no '='", "levels=0-6/8"}},
      // Names.
      {"sttaic", {"unknown method 'sttaic'", "did you mean 'static'?", "scissorhands"}},
      {"Quant:bits=4", {"unknown method 'Quant'", "did you mean 'quant'?"}},
      {"q4_0", {"unknown method 'q4_0'", "allowed: bands, auto, full, quant"}},
      {"static:ratoi=0.5", {"static has no key 'ratoi'", "did you mean 'ratio'?", "rv, energy"}},
      {"oja:eta_prefil=0.1", {"no key 'eta_prefil'", "did you mean 'eta_prefill'?"}},
      {"full:bits=4", {"full has no key 'bits'", "allowed: store"}},
      {"static:rk=16,rk=32", {"rk of static is given twice", "rk=16 and rk=32"}},
      // Values.
      {"static:store=in8", {"store=in8", "f16, f32, bf16, int8 or int4", "did you mean 'int8'?"}},
      {"static:rk=0", {"rk=0", "whole number from 1", "d/4"}},
      {"static:rk=-4", {"rk=-4", "whole number from 1"}},
      {"static:rk=d/0", {"rk=d/0"}},
      {"static:rv=1.5", {"rv=1.5", "a share of d"}},
      {"static:energy=95", {"energy=95", "a number from 0.01 to 1"}},
      {"static:gamma=squared", {"gamma=squared", "sqrt, fit or a number from 0.01 to 100"}},
      {"static:sink=many", {"sink=many", "a whole number from 0"}},
      {"static:rope=anchor,anchor=50", {"anchor=50", "a multiple of 16"}},
      {"fd:sketch=2d", {"sketch=2d", "2r"}},
      {"fd:chunk=16,min_chunk=64", {"min_chunk=64 exceeds chunk=16"}},
      {"oja:top=500%", {"top=500%", "a share from 0.01% to 100%"}},
      {"oja:stale=keep", {"stale=keep", "segment, rotate or reuse"}},
      {"quant:bits=5", {"bits=5", "8, 4, 3 or 2"}},
      {"bands:bits=9", {"bits=9", "a number from 0.05 to 8"}},
      {"bands:bits=nan", {"bits=nan"}},
      {"bands:levels=0-9", {"levels=0-9", "bit widths from 0 to 8"}},
      {"bands:levels=0-2,bits=3", {"bits=3", "levels=0-2", "from 0 to 2"}},
      {"snapkv:keep=0", {"keep=0", "a number of tokens from 1"}},
      {"auto:budget=64Mb", {"budget=64Mb", "512MiB"}},
      // Keys that do not go together.
      {"static:energy=0.95,ratio=0.5", {"energy=0.95 and ratio=0.5 exclude each other", "ranks"}},
      {"static:energy=0.95,rk=16", {"energy=0.95 and rk=16", "rk=full"}},
      {"oja:ratio=0.6,rv=16", {"ratio=0.6 and rv=16 exclude each other"}},
      {"static:energy=0.9,ranks=table", {"energy=0.9 needs ranks=fixed, not table"}},
      {"static:anchor=64", {"anchor=64 needs rope=anchor, not post"}},
      {"static:heads=2", {"heads=2 needs share=group"}},
      {"spectral:ranks=layers,rk=16", {"rk=16 needs ranks=fixed|table", "its own table"}},
      {"quant:bits=4,kbits=8,vbits=4", {"kbits=8 and bits=4 exclude each other"}},
      {"quant:kbits=8", {"kbits=8 needs vbits too"}},
      {"quant:layout=kivi,rotate=hadamard", {"rotate=hadamard with layout=kivi", "rotate=none"}},
      {"quant:layout=tensor,group=64", {"group=64 needs layout=group|kivi"}},
      {"bands:kbits=2,vbits=2", {"kbits=2 needs share=layer|group|head, not auto", "together"}},
      {"bands:refresh=512", {"refresh=512 needs calib=online, not file"}},
      {"fd:tau=0.1,tau_k=0.1,tau_v=0.1", {"tau_k=0.1 and tau=0.1 exclude"}},
      {"h2o:heavy=0.1", {"heavy=0.1 needs recent too"}},
      {"auto", {"auto needs one of budget, quality", "auto:budget=64MiB"}},
      {"auto:budget=1GiB,quality=1%", {"budget=1GiB and quality=1% exclude"}},
      {"auto:quality=1%,ctx=4096", {"ctx=4096 needs budget too"}},
      // Parts that do not go together.
      {"static+oja", {"two methods, static and oja", "snapkv"}},
      {"full+quant", {"two methods, full and quant"}},
      {"snapkv+quest", {"two selectors, snapkv and quest"}},
      {"snapkv+h2o+static", {"two selectors"}},
      {"auto:budget=1GiB+snapkv", {"auto stands for a whole recipe"}},
      {"h2o+window", {"h2o cannot go with window", "decides itself which tokens stay"}},
      {"h2o+bands", {"h2o cannot go with bands", "tiles of 16 tokens"}},
      {"h2o+quant:layout=kivi", {"h2o cannot go with quant", "layout=kivi", "layout=group"}},
      {"spectral+snapkv", {"snapkv cannot go with spectral", "store=int8", "store=f16"}},
      {"quest:page=24+bands", {"quest cannot go with bands", "page=24"}},
      {"shadowkv+bands", {"shadowkv cannot go with bands", "chunk=8"}},
      {"shadowkv:rank=16+static", {"shadowkv cannot go with static", "rank="}},
  };
  return list;
}

TEST(BadRecipes, AreRefusedWithWordsThatHelp) {
  EXPECT_GE(bad_recipes().size(), 40u);
  for (const BadRecipe& bad : bad_recipes()) {
    const auto recipe = Recipe::parse(bad.text);
    ASSERT_FALSE(recipe.has_value()) << bad.text << " was taken as " << recipe->text();
    const std::string& message = recipe.error().message;
    EXPECT_EQ(recipe.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(message.find("recipe '" + std::string(bad.text) + "'"), std::string::npos) << message;
    for (const std::string_view word : bad.words) {
      EXPECT_NE(message.find(word), std::string::npos) << "'" << word << "' is not in: " << message;
    }
  }
}

// Any damage to a good recipe is either another good recipe or an error, never a crash.
TEST(BadRecipes, DamagedRecipesAreTakenOrRefused) {
  const std::string_view letters = "abdr0128./%-_,:=+ \xff";
  std::size_t refused = 0;
  for (const MethodDeclaration& method : all_methods()) {
    for (std::size_t at = 0; at <= method.example.size(); ++at) {
      for (const char letter : letters) {
        std::string text(method.example);
        text.insert(at, 1, letter);
        const auto recipe = Recipe::parse(text);
        if (recipe.has_value()) {
          EXPECT_EQ(*Recipe::parse(recipe->text()), *recipe) << text;
        } else {
          ++refused;
          EXPECT_GT(recipe.error().message.size(), text.size() + 10);
        }
      }
      EXPECT_NO_FATAL_FAILURE((void)Recipe::parse(method.example.substr(0, at)));
    }
  }
  EXPECT_GT(refused, 1000u);
}

}  // namespace
}  // namespace kvspan
