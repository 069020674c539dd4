// SPDX-License-Identifier: Apache-2.0
// fd, oja, snapkv and h2o on activations of real models, against what a Python script written from
// the papers makes of the same rows (fixtures/make_fixtures.py).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <string>

#include "cache/code/coded_side.h"
#include "linalg/subspaces.h"
#include "method/method_cache.h"
#include "method/policies/fd_policy.h"
#include "recipe/recipe.h"
#include "tests/method/synthetic.h"

namespace kvspan {
namespace independent_test {

using testing::SyntheticText;

struct Case {
  std::string file, recipe;
  std::int32_t first_call = 0;
  std::size_t head = 0;
  std::map<std::string, std::vector<double>> fields;
};

std::vector<Case> cases(const std::string& method) {
  std::ifstream in(KVSPAN_SOURCE_DIR "/tests/method/fixtures/methods.txt");
  std::vector<Case> all;
  std::string name, before;
  for (std::size_t count; in >> name >> count;) {
    std::vector<double> values(count);
    for (double& value : values) in >> value;
    const std::size_t slash = name.rfind('/');
    const std::string key = name.substr(0, slash);
    const std::size_t a = key.find('|'), b = key.find('|', a + 1), c = key.find('|', b + 1);
    if (!key.substr(a + 1).starts_with(method)) continue;
    if (key != before) {
      all.push_back({key.substr(0, a),
                     key.substr(a + 1, b - a - 1),
                     std::stoi(key.substr(b + 1, c - b - 1)),
                     std::stoul(key.substr(c + 1)),
                     {}});
    }
    before = key;
    all.back().fields[name.substr(slash + 1)] = std::move(values);
  }
  return all;
}

// The cache after the case's text: one call for the prompt, then token by token.
std::unique_ptr<MethodCache> after_text(const Case& c) {
  const SyntheticText text(testing::read_activations(c.file));
  const Calibration calibration = text.calibration();
  const Result<Recipe> recipe = Recipe::parse(c.recipe);
  EXPECT_TRUE(recipe) << recipe.error().message;
  auto cache = std::make_unique<MethodCache>(prepare(text.shape(), *recipe, &calibration).value());
  testing::run(*cache, text, 0, c.first_call, c.first_call);
  testing::run(*cache, text, c.first_call, text.size() - c.first_call, 1);
  return cache;
}

// Neighbouring coded segments under the same key code are one segment of the method.
struct Span {
  std::int32_t start = 0, rows = 0;
  const Code *keys = nullptr, *values = nullptr;
};
std::vector<Span> spans(const SegmentList& list) {
  std::vector<Span> all;
  for (const Segment& s : list.segments()) {
    if (!s.coded()) continue;
    const Code* keys = s.coded_keys->parts()[0].code.get();
    if (all.empty() || all.back().keys != keys) {
      all.push_back({s.positions.at(0), 0, keys, s.coded_values->parts()[0].code.get()});
    }
    all.back().rows += s.tokens();
  }
  return all;
}

// The largest angle between a code's directions and those of the fixture.
double angle(const Code& code, const std::vector<double>& expected) {
  const auto r = static_cast<std::size_t>(code.rank()), d = static_cast<std::size_t>(code.width());
  EXPECT_EQ(expected.size(), r * d);
  Matrix ours(r, d), theirs(r, d);
  for (std::size_t i = 0; i < r; ++i) {
    for (std::size_t j = 0; j < d; ++j) {
      ours(i, j) = code.synthesis(0)[j * r + i];
      theirs(i, j) = static_cast<float>(expected[i * d + j]);
    }
  }
  // Written with six digits, so orthonormal only to that.
  double worst = 0.0;
  for (const double one : principal_angles(ours.view(), theirs.view())) {
    worst = std::max(worst, one);
  }
  return worst;
}

void check_spans(const Case& c, const SegmentList& list, double change) {
  const std::vector<Span> found = spans(list);
  const std::vector<double>& starts = c.fields.at("starts");
  ASSERT_EQ(found.size(), starts.size()) << c.recipe;
  std::size_t compared = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].start, starts[i]) << c.recipe << ", segment " << i;
    EXPECT_EQ(found[i].rows, c.fields.at("rows")[i]) << c.recipe << ", segment " << i;
    for (const char* side : {"key", "value"}) {
      const auto basis = c.fields.find(fmt::format("{}_basis_{}", side, i));
      if (basis == c.fields.end()) continue;
      // Davis-Kahan: the directions turn by at most the change of the Gram over the gap; 2e-5 for
      // the six digits of the fixture and the resolution of angles.
      const double gap = c.fields.at(fmt::format("{}_gap_{}", side, i))[0];
      const double allowed = change / gap + 2e-5;
      EXPECT_LT(allowed, 0.02) << "a tolerance that says nothing: " << c.recipe;
      const Code& code = side[0] == 'k' ? *found[i].keys : *found[i].values;
      EXPECT_LE(angle(code, basis->second), allowed) << c.recipe << ", segment " << i << side;
      ++compared;
    }
  }
  EXPECT_GE(compared, 2u);
}

TEST(Independent, FdSwitchesWhereNumpyDoesToTheSameBases) {
  const std::vector<Case> all = cases("fd");
  ASSERT_EQ(all.size(), 15u);
  for (const Case& c : all) {
    const auto cache = after_text(c);
    // Each shrink rounds the sketch to f32: its Gram moves by 2^-23 of its norm, and so may every
    // later shrink.
    const double shrinks = std::max(c.fields.at("shrinks")[0], c.fields.at("shrinks")[1]);
    check_spans(c, cache->group(0, c.head).list(), 2 * (shrinks + 1) * 0x1p-23);
    const auto* policy = dynamic_cast<const FdPolicy*>(cache->policy(0, c.head));
    ASSERT_NE(policy, nullptr);
    const FrequentDirections* sketches[] = {policy->keys(), policy->values()};
    for (std::size_t i = 0; i < 2; ++i) {
      const double delta = c.fields.at("delta")[i];
      EXPECT_NEAR(sketches[i]->delta(), delta, 1e-5 * delta + (shrinks + 1) * sketches[i]->drift())
          << c.recipe;
    }
  }
}

TEST(Independent, OjaTurnsTheBasisAsAlgorithmOneOfItsPaper) {
  const std::vector<Case> all = cases("oja");
  ASSERT_EQ(all.size(), 15u);
  for (const Case& c : all) {
    const auto cache = after_text(c);
    // The start is known as well as f32 moments give it, each step and QR rounds to f32; a step
    // may stretch what was turned by up to 1 + eta times the batch's energy, which is below 4.
    check_spans(c, cache->group(0, c.head).list(), 8 * 0x1p-23);
  }
}

TEST(Independent, SnapkvAndH2oKeepTheTokensThatPlainPythonKeeps) {
  std::size_t checked = 0;
  for (const char* selector : {"snapkv", "h2o"}) {
    for (const Case& c : cases(selector)) {
      const auto cache = after_text(c);
      const SegmentList& list = cache->group(0, c.head).list();
      std::vector<double> kept;
      for (std::int32_t t = 0; t < list.tokens(); ++t) kept.push_back(list.position(t));
      EXPECT_EQ(kept, c.fields.at("kept")) << c.file << " " << c.recipe << ", head " << c.head;
      ++checked;
    }
  }
  EXPECT_EQ(checked, 20u);
}

}  // namespace independent_test
}  // namespace kvspan
