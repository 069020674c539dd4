// SPDX-License-Identifier: Apache-2.0
// Windows, chunks, ALiBi and sinks under every recipe: what a cache answers is the plain softmax,
// in double precision, over the rows as it stores them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "attention/certificate/certificate.h"
#include "cache/layer_part.h"
#include "method/method_cache.h"
#include "recipe/recipe.h"
#include "tests/attention/oracle.h"
#include "tests/method/held_positions.h"
#include "tests/method/recipes.h"
#include "tests/method/synthetic.h"

namespace kvspan {
namespace attention_forms_test {

using testing::SuiteRecipe;
using testing::SyntheticText;

constexpr std::int32_t kTokens = 200;

struct Form {
  const char* name;
  void (*set)(LayerShape&);
};

constexpr Form kForms[] = {
    {"plain", [](LayerShape&) {}},
    {"window", [](LayerShape& l) { l.window = 40; }},
    {"chunk", [](LayerShape& l) { l.chunk = 48; }},
    {"alibi",
     [](LayerShape& l) {
       l.alibi = {0.3f, 0.1f, 0.02f, 0.005f};
     }},
    {"sinks",
     [](LayerShape& l) {
       l.sinks = {5.0f, 3.0f, 4.0f, -1.0f};
     }},
    {"all",
     [](LayerShape& l) {
       for (std::size_t i = 0; i < 5; ++i) kForms[i].set(l);
       l.soft_cap = 8.0f;
     }},
};

CacheShape shape_of(const Form& form) {
  CacheShape shape = testing::synthetic_shape();
  for (LayerShape& layer : shape.layers) form.set(layer);
  return shape;
}

// One query head that reads KV head `kv` of the rows.
std::vector<double> plain_softmax(const LayerShape& s, const RowBlock& rows, std::int32_t kv,
                                  std::int32_t head, const float* q, std::int32_t position) {
  const auto dk = std::size_t(s.key_dim), dv = std::size_t(s.value_dim);
  std::vector<double> out(dv, 0.0);
  double sum = s.sinks.empty() ? 0.0 : std::exp(double{s.sinks[std::size_t(head)]});
  for (std::size_t t = 0; t < rows.positions.size(); ++t) {
    if (!testing::sees(s, position, rows.positions[t])) continue;
    double logit = 0.0;
    for (std::size_t i = 0; i < dk; ++i) {
      logit += double{q[i]} * double{rows.keys_of(kv).row(t)[i]};
    }
    logit *= double{s.logit_scale};
    if (s.soft_cap > 0.0f) logit = s.soft_cap * std::tanh(logit / s.soft_cap);
    logit += testing::alibi_of(s, head, position, rows.positions[t]);
    sum += std::exp(logit);
    for (std::size_t i = 0; i < dv; ++i) {
      out[i] += std::exp(logit) * double{rows.values_of(kv).row(t)[i]};
    }
  }
  for (double& x : out) x /= sum > 0.0 ? sum : 1.0;
  return out;
}

class AttentionForms : public ::testing::TestWithParam<SuiteRecipe> {};

struct FormText {
  explicit FormText(const Form& of)
      : form(of), text(shape_of(of), kTokens, 5), calibration(text.calibration()) {}
  const Form& form;
  SyntheticText text;
  Calibration calibration;

  static const std::vector<FormText>& all() {
    static const std::vector<FormText> forms(std::begin(kForms), std::end(kForms));
    return forms;
  }
  // The recipe's cache; none where it cannot have the form, which the reason names.
  std::unique_ptr<MethodCache> make(const SuiteRecipe& suite) const {
    const auto prepared = prepare(text.shape(), Recipe::parse(suite.text).value(), &calibration);
    const LayerShape& first = text.shape().layers[0];
    if (!suite.reads_some || first.alibi.empty() || first.window > 0) {
      return std::make_unique<MethodCache>(prepared.value());
    }
    EXPECT_FALSE(prepared);
    EXPECT_NE(prepared.error().message.find("alibi"), std::string::npos);
    return nullptr;
  }
};

// Asks a layer at the n positions from `first` on. How far the form itself moves the answers.
double expect_plain_softmax(const SuiteRecipe& suite, const FormText& of, MethodCache& cache, std::size_t l,
                            std::int32_t first, std::int32_t n, double off_by_bytes) {
  // bands rounds queries and weights to 8 bits, quant and others multiply 16-bit integers.
  const bool bytes = suite.text.find("bands") != std::string::npos;
  const double tolerance = bytes ? off_by_bytes : 2e-4;
  const LayerShape& s = of.text.shape().layers[l];
  const LayerShape bare = testing::synthetic_shape().layers[l];
  const auto heads = std::size_t(s.query_heads), dv = std::size_t(s.value_dim);
  TeamState state;
  Team team(state, 0, 1);
  const auto scratch = make_attention_scratch();
  std::vector<float> out(std::size_t(n) * heads * dv);
  const Queries queries = of.text.queries(l, first, n);
  EXPECT_TRUE(cache.attend(int(l), queries, {out.data(), {std::size_t(n), heads, dv}}, *scratch, team));
  double moved = 0.0;
  for (std::size_t g = 0; g < cache.groups(int(l)); ++g) {
    const GroupOptions& options = cache.group(int(l), g).options();
    const RowBlock rows = testing::held_rows(cache.group(int(l), g), cache.last_read(int(l), g));
    const std::int32_t per_head = s.query_heads / s.kv_heads;
    for (std::int32_t at = 0; at < n * options.heads * per_head; ++at) {
      const std::int32_t i = at / (options.heads * per_head), of_group = at % (options.heads * per_head);
      const std::int32_t head = options.first_head * per_head + of_group, kv = of_group / per_head;
      const float* q = queries.rows.row(std::size_t(i), std::size_t(head));
      const auto right = plain_softmax(s, rows, kv, head, q, first + i);
      const auto without = plain_softmax(bare, rows, kv, head, q, first + i);
      for (std::size_t j = 0; j < dv; ++j) {
        const float got = out[(std::size_t(i) * heads + std::size_t(head)) * dv + j];
        EXPECT_NEAR(got, right[j], tolerance)
            << of.form.name << ", layer " << l << ", head " << head << ", position " << first + i;
        moved = std::max(moved, std::abs(right[j] - without[j]));
      }
    }
  }
  return moved;
}

TEST_P(AttentionForms, AnswerIsThePlainSoftmaxOverTheRowsHeld) {
  for (const FormText& of : FormText::all()) {
    const std::unique_ptr<MethodCache> cache = of.make(GetParam());
    if (!cache) continue;
    testing::run(*cache, of.text, 0, 150, 50);
    testing::run(*cache, of.text, 150, kTokens - 151, 1);
    TeamState state;
    Team team(state, 0, 1);
    double moved = 0.0;  // by the form itself
    for (std::size_t l = 0; l < of.text.shape().layers.size(); ++l) {
      ASSERT_TRUE(cache->append(int(l), of.text.rows(l, kTokens - 1, 1), team));
      moved = std::max(moved, expect_plain_softmax(GetParam(), of, *cache, l, kTokens - 1, 1, 2e-2));
    }
    // Rows that nobody sees any more are not held: only what acts on those that are can show. And
    // window:size=60 and the like hold few.
    const LayerShape& first = of.text.shape().layers[0];
    const bool shows = !GetParam().drops && !(first.window > 0 || first.chunk > 0) && &of.form != kForms;
    if (shows) {
      EXPECT_GT(moved, 0.1) << of.form.name << " changes nothing here, so this shows nothing";
    }
  }
}

// A query among the tokens held sees none after its own, whether they are coded or not; one at a time and many.
TEST_P(AttentionForms, OlderQueriesSeeNoLaterTokens) {
  for (const FormText& of : FormText::all()) {
    const std::unique_ptr<MethodCache> cache = of.make(GetParam());
    if (!cache) continue;
    testing::run(*cache, of.text, 0, 150, 50);
    testing::run(*cache, of.text, 150, kTokens - 150, 1);
    for (std::size_t l = 0; l < of.text.shape().layers.size(); ++l) {
      for (const std::int32_t position : {0, 4, 15, 16, 47, 99, 143, 144, 160, 191, 192, kTokens - 1}) {
        expect_plain_softmax(GetParam(), of, *cache, l, position, 1, 6e-2);
      }
      expect_plain_softmax(GetParam(), of, *cache, l, 60, 70, 6e-2);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Recipes, AttentionForms, ::testing::ValuesIn(testing::suite_recipes()),
                         testing::recipe_name);

// The error of coding, against a cache that keeps the rows as they came, stays below the bound.
TEST(AttentionForms, CertificatesBoundTheError) {
  for (const Form& form : kForms) {
    const SyntheticText text(shape_of(form), kTokens, 6);
    const Calibration calibration = text.calibration();
    for (const char* recipe : {"static:rk=6,rv=8,sink=4,recent=8,certify=on",
                               "quant:bits=2,group=16,certify=on,sink=4,recent=8",
                               "bands:bits=2,certify=on,sink=16,recent=16,anchor=32",
                               "bands:bits=2,share=head,certify=on,sink=0,recent=0"}) {
      MethodCache cache(prepare(text.shape(), Recipe::parse(recipe).value(), &calibration).value());
      MethodCache exact(prepare(text.shape(), Recipe::parse("full").value(), nullptr).value());
      testing::run(cache, text, 0, kTokens - 1, 50);
      testing::run(exact, text, 0, kTokens - 1, 50);
      const std::vector<float> a = testing::run(cache, text, kTokens - 1, 1, 1);
      const std::vector<float> b = testing::run(exact, text, kTokens - 1, 1, 1);
      std::size_t at = 0;
      for (std::size_t l = 0; l < text.shape().layers.size(); ++l) {
        const LayerShape& s = text.shape().layers[l];
        for (std::size_t g = 0; g < cache.groups(int(l)); ++g) {
          const Group& group = cache.group(int(l), g);
          const std::int32_t first = group.options().first_head;
          const LayerShape part = layer_part(s, first, group.options().heads);
          Queries queries = text.queries(l, kTokens - 1, 1);
          queries.rows.data += first * (s.query_heads / s.kv_heads) * s.key_dim;
          queries.rows.shape[1] = std::size_t(part.query_heads);
          std::vector<Certificate> bounds(std::size_t(part.query_heads));
          for (std::int32_t h = 0; h < part.kv_heads; ++h) {
            ASSERT_TRUE(certify(part, testing::stores_of(group), queries, h,
                                {bounds.data(), {1, bounds.size()}}));
          }
          for (const Certificate& bound : bounds) {
            double error = 0.0;
            for (std::int32_t i = 0; i < s.value_dim; ++i, ++at) {
              error += (double{a[at]} - b[at]) * (double{a[at]} - b[at]);
            }
            EXPECT_LE(std::sqrt(error), bound.output * 1.0001 + 1e-5) << recipe << form.name;
          }
        }
      }
    }
  }
}

}  // namespace attention_forms_test
}  // namespace kvspan
