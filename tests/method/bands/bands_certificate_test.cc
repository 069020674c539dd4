// SPDX-License-Identifier: Apache-2.0
// For bands: certificates are never below the error measured against
// exact attention, whatever the bits, anchors and shares, in prefill and decode, on made-up rows
// and on activations of real models. Prints how tight they are.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "attention/certificate/certificate.h"
#include "base/half.h"
#include "method/bands/bands_policy.h"
#include "method/method_cache.h"
#include "recipe/recipe.h"
#include "tests/base/sweep.h"
#include "tests/method/held_positions.h"
#include "tests/method/synthetic.h"

namespace kvspan {
namespace {

using testing::SyntheticText;

struct Exact {
  std::vector<double> logits, weights, output;
};

// One query head over the rows as full-rank ends hold them, or over those rebuilt, in double.
Exact attend(const LayerShape& l, const float* q, const std::vector<std::vector<float>>& keys,
             const std::vector<std::vector<float>>& values) {
  Exact e;
  double most = -1e300, sum = 0.0;
  for (const std::vector<float>& k : keys) {
    double dot = 0.0;
    for (std::size_t j = 0; j < k.size(); ++j) dot += double{q[j]} * double{k[j]};
    dot *= double{l.logit_scale};
    if (l.soft_cap > 0.0f) dot = l.soft_cap * std::tanh(dot / l.soft_cap);
    e.logits.push_back(dot);
    most = std::max(most, dot);
  }
  for (const double logit : e.logits) e.weights.push_back(std::exp(logit - most));
  for (const double w : e.weights) sum += w;
  e.output.assign(std::size_t(l.value_dim), 0.0);
  for (std::size_t t = 0; t < e.weights.size(); ++t) {
    e.weights[t] /= sum;
    for (std::size_t j = 0; j < e.output.size(); ++j) {
      e.output[j] += e.weights[t] * double{values[t][j]};
    }
  }
  return e;
}

// Rows of one KV head up to and with the query's position, oldest first.
struct Rows {
  std::vector<std::vector<float>> keys, values;
};

Rows given(const SyntheticText& text, std::size_t layer, std::int32_t head, std::int32_t first,
           std::int32_t last) {
  Rows rows;
  const KvRows all = text.rows(layer, 0, last + 1);
  const auto rounded = [](const float* x, std::int32_t n) {
    std::vector<float> row(std::size_t(n), 0.0f);
    for (std::size_t i = 0; i < row.size(); ++i) row[i] = to_float(to_half(x[i]));
    return row;
  };
  for (std::int32_t t = first; t <= last; ++t) {
    rows.keys.push_back(rounded(all.keys.row(t, head), text.shape().layers[layer].key_dim));
    rows.values.push_back(rounded(all.values.row(t, head), text.shape().layers[layer].value_dim));
  }
  return rows;
}

// Exchanges what bands holds for what it gives back.
Rows as_held(Rows rows, const LayerShape& l, const BandsTokens& bands, std::int32_t head,
             std::int32_t first, std::int32_t last) {
  RowBlock held{.heads = bands.keys().code().heads(),
                .key_dim = l.key_dim,
                .value_dim = l.value_dim,
                .keys = {},
                .values = {},
                .positions = {}};
  bands.read(first, last + 1, held);
  for (std::size_t t = 0; t < held.size(); ++t) {
    const auto at = std::size_t(held.positions[t] - first);
    std::copy_n(held.keys_of(head).row(t), l.key_dim, rows.keys[at].data());
    std::copy_n(held.values_of(head).row(t), l.value_dim, rows.values[at].data());
  }
  return rows;
}

struct Tightness {
  std::vector<double> logits, weights, output, share;  // bound over error; bound over |o|
  std::size_t trials = 0;

  static double median(std::vector<double>& x) {
    if (x.empty()) return 0.0;
    std::nth_element(x.begin(), x.begin() + std::ptrdiff_t(x.size() / 2), x.end());
    return x[x.size() / 2];
  }
  void print(const std::string& what) {
    std::printf(
        "%s: %zu trials; median bound / error: logits %.1f, weights %.1f, output %.1f; "
        "output bound / |o| %.2f\n",
        what.c_str(), trials, median(logits), median(weights), median(output), median(share));
  }
};

// Holds the queries of one call against their certificates, before the call is settled.
void check_call(const MethodCache& cache, const SyntheticText& text, int layer,
                const Queries& queries, const TensorView<float, 3>& out, Tightness& tightness) {
  const LayerShape& l = text.shape().layers[std::size_t(layer)];
  const std::int32_t per_head = l.query_heads / l.kv_heads;
  for (std::size_t g = 0; g < cache.groups(layer); ++g) {
    const Group& group = cache.group(layer, g);
    const std::int32_t first_head = group.options().first_head;
    LayerShape part = l;
    part.kv_heads = group.options().heads;
    part.query_heads = part.kv_heads * per_head;
    Queries asked = queries;
    asked.rows.data = queries.rows.row(0, first_head * per_head);
    asked.rows.shape[1] = std::size_t(part.query_heads);
    std::vector<Certificate> bounds(queries.positions.size() * std::size_t(part.query_heads));
    const TensorView<Certificate, 2> view{
        bounds.data(), {queries.positions.size(), std::size_t(part.query_heads)}};
    for (std::int32_t h = 0; h < part.kv_heads; ++h) {
      const Status status = certify(part, testing::stores_of(group), asked, h, view);
      ASSERT_TRUE(status) << status.error().message;
    }
    for (std::size_t i = 0; i < queries.positions.size(); ++i) {
      const std::int32_t position = queries.positions[i];
      const std::int32_t first = l.window > 0 ? std::max(0, position - l.window + 1) : 0;
      for (std::int32_t h = 0; h < part.query_heads; ++h) {
        const std::int32_t head = h / per_head;
        const float* q = asked.rows.row(i, h);
        const Rows truth = given(text, std::size_t(layer), first_head + head, first, position);
        const Exact exact = attend(l, q, truth.keys, truth.values);
        const Rows held = as_held(truth, l, bands_of(group).front(), head, first, position);
        const Exact coded = attend(l, q, held.keys, held.values);
        double logits = 0.0, weights = 0.0, values = 0.0, output = 0.0, size = 0.0;
        for (std::size_t t = 0; t < exact.logits.size(); ++t) {
          logits = std::max(logits, std::abs(exact.logits[t] - coded.logits[t]));
          weights += std::abs(exact.weights[t] - coded.weights[t]);
          double lost = 0.0;
          for (std::size_t j = 0; j < truth.values[t].size(); ++j) {
            lost += std::pow(double{truth.values[t][j]} - held.values[t][j], 2.0);
          }
          values += coded.weights[t] * std::sqrt(lost);
        }
        const float* got = out.row(i, first_head * per_head + h);
        for (std::size_t j = 0; j < exact.output.size(); ++j) {
          output += std::pow(double{got[j]} - exact.output[j], 2.0);
          size += exact.output[j] * exact.output[j];
        }
        output = std::sqrt(output);
        const Certificate& bound = view.row(i)[h];
        ASSERT_LE(logits, bound.logits) << "position " << position << ", head " << h;
        ASSERT_LE(weights, bound.weights) << "position " << position << ", head " << h;
        ASSERT_LE(values, bound.values) << "position " << position << ", head " << h;
        ASSERT_LE(output, bound.output) << "position " << position << ", head " << h;
        ++tightness.trials;
        if (output <= 1e-4 * std::sqrt(size)) continue;
        tightness.output.push_back(bound.output / output);
        tightness.share.push_back(bound.output / std::sqrt(size));
        if (logits > 1e-4) tightness.logits.push_back(bound.logits / logits);
        if (weights > 1e-4) tightness.weights.push_back(bound.weights / weights);
      }
    }
  }
}

// Blocks of `block` to two thirds of the text, then single tokens; some calls are checked.
constexpr std::int32_t kChecked = testing::kSanitized ? 17 : 5;
void check_text(const SyntheticText& text, const Calibration& calibration,
                const std::string& recipe, std::int32_t block, Tightness& tightness) {
  const Result<Recipe> parsed = Recipe::parse(recipe);
  ASSERT_TRUE(parsed) << parsed.error().message;
  auto prepared = prepare(text.shape(), *parsed, &calibration);
  ASSERT_TRUE(prepared) << recipe << ": " << prepared.error().message;
  MethodCache cache(*prepared);
  TeamState state;
  Team team(state, 0, 1);
  const auto scratch = make_attention_scratch();
  const std::int32_t prompt = 2 * text.size() / 3;
  for (std::int32_t at = 0, call = 0; at < text.size(); ++call) {
    const std::int32_t n = at < prompt ? std::min(block, prompt - at) : 1;
    for (int layer = 0; layer < int(text.shape().layers.size()); ++layer) {
      const LayerShape& l = text.shape().layers[std::size_t(layer)];
      std::vector<float> out(std::size_t(n * l.query_heads * l.value_dim));
      const TensorView<float, 3> rows{
          out.data(), {std::size_t(n), std::size_t(l.query_heads), std::size_t(l.value_dim)}};
      const Queries queries = text.queries(std::size_t(layer), at, n);
      ASSERT_TRUE(cache.append(layer, text.rows(std::size_t(layer), at, n), team));
      ASSERT_TRUE(cache.attend(layer, queries, rows, *scratch, team));
      if (call % kChecked == 0 && at >= prompt / 2) {
        check_call(cache, text, layer, queries, rows, tightness);
        if (::testing::Test::HasFatalFailure()) return;
      }
      ASSERT_TRUE(cache.settle(layer, team));
    }
    at += n;
  }
}

const std::string kEnds = ",certify=on,sink=16,recent=16";

// With sanitizers everything is some ten times slower, and the bounds are what the release build
// tests: recipes that differ in code, not in numbers, are enough there.
constexpr bool kSomeRecipes = testing::kSanitized;

std::vector<std::string> recipes(bool some) {
  std::vector<std::string> all{"bands:bits=1", "bands:bits=2", "bands:bits=4",
                               "bands:bits=2,share=layer,anchor=16"};
  if (some) return all;
  all.push_back("bands:bits=2,rope=pre");
  all.push_back("bands:bits=5,share=layer,rope=pre");
  all.push_back("bands:levels=8,bits=8,anchor=128");
  all.push_back("bands:bits=3,share=head,anchor=32,gain=none");
  all.push_back("bands:bits=2,share=layer,rope=post");
  all.push_back("bands:bits=4,share=head,rope=post,metric=iso");
  all.push_back("bands:bits=1.5,anchor=256,escape=20%");
  return all;
}

TEST(BandsCertificate, NeverFallsBelowTheMeasuredErrorOfMadeUpRows) {
  for (const std::string& recipe : recipes(kSomeRecipes)) {
    Tightness tightness;
    for (const std::uint64_t seed : {1, 2}) {
      CacheShape shape = testing::synthetic_shape(2, seed == 1 ? 2 : 3, seed == 1 ? 16 : 24);
      if (seed == 2) {
        shape.layers[0].window = 100;
        shape.layers[1].soft_cap = 2.0f;
        shape.layers[1].rope.magnitude = 1.3f;
      }
      const SyntheticText text(shape, 200, seed);
      check_text(text, text.calibration(), recipe + kEnds, seed == 1 ? 30 : 7, tightness);
      ASSERT_FALSE(HasFatalFailure()) << recipe << ", seed " << seed;
    }
    tightness.print(recipe);
  }
}

TEST(BandsCertificate, NeverFallsBelowTheMeasuredErrorOnActivationsOfModels) {
  for (const testing::Activations& a : testing::all_activations()) {
    const SyntheticText text(a);
    const Calibration calibration = text.calibration();
    for (const std::string& recipe : recipes(kSomeRecipes)) {
      Tightness tightness;
      check_text(text, calibration, recipe + kEnds, 20, tightness);
      ASSERT_FALSE(HasFatalFailure()) << a.name << ", " << recipe;
      tightness.print(a.name + ", " + recipe);
    }
  }
}

// Numbers far larger than usual: weights on one token, roundings of queries in the logits.
TEST(BandsCertificate, HoldsWhereScoresAreSharp) {
  for (const std::string& recipe : recipes(true)) {
    CacheShape shape = testing::synthetic_shape(1, 2, 16);
    shape.layers[0].logit_scale = 3.0f;
    const SyntheticText text(shape, 200, 9);
    Tightness tightness;
    check_text(text, text.calibration(), recipe + kEnds, 25, tightness);
    ASSERT_FALSE(HasFatalFailure()) << recipe;
    tightness.print("sharp, " + recipe);
  }
}

TEST(BandsCertificate, IsRefusedWhereNoResidualsAreKept) {
  const SyntheticText text(testing::synthetic_shape(), 100, 3);
  const Calibration calibration = text.calibration();
  MethodCache cache(
      prepare(text.shape(), Recipe::parse("bands:sink=16,recent=16").value(), &calibration)
          .value());
  testing::run(cache, text, 0, 100, 50);
  const Group& group = cache.group(0, 0);
  ASSERT_FALSE(bands_of(group).front().empty());
  std::vector<Certificate> bounds(4);
  const Status status = certify(text.shape().layers[0], testing::stores_of(group),
                                text.queries(0, 99, 1), 0, {bounds.data(), {1, 4}});
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kUnsupported);
}

}  // namespace
}  // namespace kvspan
