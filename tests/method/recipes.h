// SPDX-License-Identifier: Apache-2.0
// Every method, selector and pair that composes, small enough for a text of some hundred tokens:
// all of them in `./test --all`, otherwise a subset with each value of each key of each method.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "recipe/recipe.h"
#include "tests/base/sweep.h"

namespace kvspan::testing {

struct SuiteRecipe {
  std::string text;
  bool splits = true;  // the same segments however calls are split
  bool drops = false;  // tokens are dropped
  bool reads_some = false;
};

// The name of a test that runs with one of them.
inline std::string recipe_name(const ::testing::TestParamInfo<SuiteRecipe>& info) {
  std::string name;
  for (const char c : info.param.text) {
    name += std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  }
  return name;
}

// A recipe of every method that fits a short text; of one that is not listed, with short ends.
inline const std::map<std::string_view, std::string>& short_recipes() {
  static const std::map<std::string_view, std::string> kTexts = {
      {"bands", "bands:bits=3,anchor=32,sink=16,recent=32"},
      {"full", "full"},
      {"quant", "quant:group=16,sink=4,recent=32"},
      {"static", "static:rk=8,rv=8,sink=4,recent=32"},
      {"fd", "fd:rk=6,rv=6,tau=0.3,sink=4,recent=32"},
      {"rotate", "rotate:rk=6,rv=8,every=32,sink=4,recent=32"},
      {"oja", "oja:rk=6,rv=8,sink=4,recent=16"},
      {"spectral", "spectral:rk=6,rv=8,block=48,store=f16,sink=4,recent=32"},
      {"prune", "prune:keep=0.5,sink=4,recent=16"},
      {"window", "window:size=60"},
      {"streaming", "streaming:sink=4,size=60"},
      {"h2o", "h2o:keep=0.5"},
      {"scissorhands", "scissorhands:keep=90,drop=10,history=20"},
      {"snapkv", "snapkv:keep=0.5,window=8"},
      {"quest", "quest:keep=64,page=16,skip=1"},
      {"shadowkv", "shadowkv:keep=64,chunk=16,outliers=2"},
  };
  return kTexts;
}
inline std::string short_recipe(std::string_view method) {
  const auto found = short_recipes().find(method);
  return found != short_recipes().end() ? found->second : std::string(method) + ":sink=4,recent=32";
}

// Every selector with every method that it composes with.
inline std::vector<SuiteRecipe> suite_pairs() {
  std::vector<SuiteRecipe> pairs;
  for (const MethodDeclaration& selector : all_methods()) {
    if (selector.kind != MethodKind::kSelector) continue;
    for (const MethodDeclaration& method : all_methods()) {
      if (method.make == nullptr) continue;
      const std::string text = short_recipe(selector.name) + "+" + short_recipe(method.name);
      if (!Recipe::parse(text)) continue;
      pairs.push_back({text, false, selector.tokens == TokenUse::kDropsSome,
                       selector.tokens == TokenUse::kReadsSome});
    }
  }
  return pairs;
}

inline std::vector<SuiteRecipe> all_suite_recipes() {
  std::vector<SuiteRecipe> all;
  const auto add = [&](std::string text, bool splits = true, bool drops = false,
                       bool reads_some = false) {
    all.push_back({std::move(text), splits, drops, reads_some});
  };
  add("full");
  add("full:store=f32");
  for (const char* rope : {"post", "pre", "anchor"}) {
    const std::string tail = std::string(",sink=5,recent=20,rope=") + rope;
    for (const char* share : {"head", "layer"}) {
      const std::string both = tail + ",share=" + share;
      add("static:rk=6,rv=8" + both);
      add("fd:rk=6,rv=8,chunk=64,tau=0.3" + both);
      add("rotate:rk=6,rv=8,every=32" + both);
      add("spectral:rk=6,rv=8,block=48,store=f16" + both);
      add("oja:rk=6,rv=8" + both, false);
    }
  }
  for (const char* store : {"f32", "bf16", "int8", "int4"}) {
    add(std::string("static:rk=8,rv=8,sink=0,recent=0,store=") + store);
  }
  add("static:rk=8,rv=8,basis=qk,sink=4,recent=8");
  add("static:rk=8,rv=8,basis=attn,sink=4,recent=8,gamma=fit");
  add("static:energy=0.9,sink=4,recent=8,gamma=sqrt");
  add("static:ratio=0.5,ranks=table,sink=4,recent=8");
  add("static:rk=full,rv=8,sink=4,recent=8");
  add("static:rk=8,rv=full,sink=4,recent=8");
  add("static:rk=8,rv=8,read=reconstruct,sink=4,recent=8");
  add("fd:rk=6,rv=6,first=full,tau=0.2,warm=40,sink=0,recent=0");
  add("fd:rk=6,rv=6,lookahead=10,update=subsample,step=3,merge=0.99,sink=3,recent=7");
  add("fd:rk=6,rv=8,shared=on,tau=0.3,warm=30,sink=3,recent=7");
  add("fd:rk=6,rv=8,bases=int8,tau=0.3,sink=3,recent=7");
  add("spectral:rk=6,rv=8,block=48,bases=f32,sink=4,recent=16");
  add("spectral:rk=6,rv=8,block=48,bases=int8,sink=4,recent=16");
  add("shadowkv:keep=64,chunk=4,outliers=2,recent=16,rank=0.5", false, false, true);
  add("spectral:ranks=layers,block=64,scale=tile,weight=attention,sink=4,recent=16", false);
  add("oja:rk=6,rv=8,stale=rotate,sink=4,recent=16", false);
  add("oja:rk=6,rv=8,stale=reuse,norm=token,sink=4,recent=16", false);
  for (const char* bits : {"8", "4", "3", "2"}) {
    add(std::string("quant:group=16,sink=4,recent=16,bits=") + bits);
  }
  add("quant:sink=4,recent=16");
  add("quant:rotate=none,group=16,sink=0,recent=0");
  add("quant:layout=head,bits=8,sink=4,recent=16");
  add("quant:layout=tensor,bits=8,sink=4,recent=16");
  add("quant:layout=kivi,group=16,bits=2,sink=4,recent=16");
  add("bands:bits=3,anchor=32,sink=16,recent=32");
  add("bands:bits=2,share=layer,anchor=16,sink=5,recent=20,escape=10%");
  add("bands:bits=4,share=head,rope=post,sink=0,recent=16,gain=none");
  add("bands:bits=2,certify=on,anchor=64,sink=16,recent=32,escape=5%");
  add("bands:bits=2,share=head,certify=on,anchor=16,sink=0,recent=0");
  add("bands:bits=2,rope=pre,sink=16,recent=32");
  add("bands:bits=3,ends=int8,anchor=32,sink=16,recent=32,escape=5%");
  add("bands:bits=2,ends=int8,share=head,anchor=16,sink=0,recent=0");
  add("bands:bits=3,share=layer,rope=pre,certify=on,sink=0,recent=16,escape=5%");
  add("bands:bits=4,share=head,rope=pre,gain=none,sink=5,recent=0");
  add("bands:kbits=2,vbits=3,share=group,metric=iso,levels=0/2/4/8,sink=0,recent=0,escape=0");
  add("bands:bits=3,calib=online,learn=64,anchor=32,sink=16,recent=32,escape=5%");
  add("bands:bits=4,calib=online,learn=48,refresh=64,ends=int8,anchor=16,sink=0,recent=0,escape="
      "5%");
  add("bands:bits=2,calib=online,learn=48,refresh=48,share=head,rope=pre,sink=16,recent=20,escape="
      "10%");
  add("bands:bits=3,calib=online,learn=96,share=layer,ends=int8,sink=16,recent=32,escape=5%");
  add("bands:bits=4,calib=online,learn=48,share=head,rope=post,gain=none,sink=16,recent=0");
  add("bands:kbits=2,vbits=3,calib=online,learn=80,share=group,levels=0/2/4/8,sink=0,recent=8");
  add("prune:keep=0.5,sink=4,recent=16", true, true);
  add("window:size=60", true, true);
  add("streaming:sink=4,size=60", true, true);
  for (const MethodDeclaration& method : all_methods()) {
    if (method.make == nullptr || short_recipes().contains(method.name)) continue;
    add(short_recipe(method.name), true, method.tokens == TokenUse::kDropsSome);
  }
  for (const SuiteRecipe& pair : suite_pairs()) {
    all.push_back(pair);
  }
  return all;
}

// What a recipe exercises: its methods, and each with the values of its keys, of which the table of
// methods says whether they are words or numbers; of numbers only whether they are 0.
inline std::set<std::string> traits_of(const SuiteRecipe& recipe) {
  std::set<std::string> traits;
  const auto pieces = [](const std::string& text, char separator) {
    std::vector<std::string> out;
    for (std::size_t at = 0; at <= text.size();) {
      const std::size_t end = std::min(text.find(separator, at), text.size());
      out.push_back(text.substr(at, end - at));
      at = end + 1;
    }
    return out;
  };
  for (const std::string& part : pieces(recipe.text, '+')) {
    const std::string name = part.substr(0, part.find(':'));
    traits.insert(name);
    if (name.size() == part.size()) continue;
    for (const std::string& given : pieces(part.substr(name.size() + 1), ',')) {
      const std::string key = given.substr(0, given.find('='));
      std::string value = given.substr(key.size() + 1);
      const KeyDeclaration* declared = find_method(name)->find_key(key);
      const bool number = std::isdigit(static_cast<unsigned char>(value[0])) != 0;
      if (number && declared != nullptr && declared->choices.empty()) {
        value = std::strtod(value.c_str(), nullptr) == 0.0 ? "0" : "some";
      }
      traits.insert(name + "." + key + "=" + value);
    }
  }
  return traits;
}

// The fewest that a greedy search finds with all traits of all.
inline std::vector<SuiteRecipe> chosen_recipes(const std::vector<SuiteRecipe>& all) {
  std::vector<std::set<std::string>> missing;
  for (const SuiteRecipe& recipe : all) missing.push_back(traits_of(recipe));
  std::vector<SuiteRecipe> chosen;
  for (;;) {
    const auto best =
        std::max_element(missing.begin(), missing.end(),
                         [](const auto& a, const auto& b) { return a.size() < b.size(); });
    if (best->empty()) return chosen;
    chosen.push_back(all[std::size_t(best - missing.begin())]);
    const std::set<std::string> seen = *best;
    for (auto& traits : missing) {
      std::erase_if(traits, [&](const auto& one) { return seen.contains(one); });
    }
  }
}
inline const std::vector<SuiteRecipe>& suite_recipes() {
  static const std::vector<SuiteRecipe> recipes =
      all_cases() ? all_suite_recipes() : chosen_recipes(all_suite_recipes());
  return recipes;
}

}  // namespace kvspan::testing
