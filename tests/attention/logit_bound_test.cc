// SPDX-License-Identifier: Apache-2.0
// In double precision: the bound of a logit with its gamma, that
// dropping the second term makes it false, and the bound of the softmax with the case that meets
// it.
#include <gtest/gtest.h>

#include "tests/attention/activations.h"
#include "tests/attention/coded_problem.h"
#include "tests/base/sweep.h"

namespace kvspan {
namespace {

struct Split {
  std::vector<double> inside, outside;  // P x and (I - P) x
};

// Rows of `basis` [rank, dim] are orthonormal to f32; projecting twice leaves errors of 1e-14.
Split project(const std::vector<float>& basis, std::size_t dim, const std::vector<double>& x) {
  Split split{std::vector<double>(dim), x};
  for (int pass = 0; pass < 3; ++pass) {
    std::vector<double> step(dim);
    for (std::size_t i = 0; i < basis.size() / dim; ++i) {
      double dot = 0.0;
      for (std::size_t j = 0; j < dim; ++j) dot += double{basis[i * dim + j]} * split.outside[j];
      for (std::size_t j = 0; j < dim; ++j) step[j] += dot * double{basis[i * dim + j]};
    }
    for (std::size_t j = 0; j < dim; ++j) {
      split.inside[j] += step[j];
      split.outside[j] -= step[j];
    }
  }
  return split;
}

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

double norm(const std::vector<double>& a) {
  return std::sqrt(dot(a, a));
}

TEST(LogitBound, HoldsForEveryGammaAndFailsWithoutItsSecondTerm) {
  Random random(11);
  std::size_t broken = 0, trials = 0;
  for (; trials < testing::sweep(20000); ++trials) {
    const std::size_t d = 4 + random.below(60), r = 1 + random.below(std::uint32_t(d));
    const auto t = testing::random_transform(r, d, false, random);
    const double scale = std::pow(10.0, -3.0 + 6.0 * random.uniform());
    const double gammas[] = {1.0, std::sqrt(double(r) / double(d)), 2.0 * random.uniform(), -0.5};
    const double gamma = gammas[random.below(4)];
    std::vector<double> q(d), k(d);
    for (double& x : q) x = random.normal() * std::exp(random.normal());
    for (double& x : k) x = scale * random.normal() * std::exp(random.normal());
    const Split qs = project(t.analysis, d, q), ks = project(t.analysis, d, k);
    const double root = std::sqrt(double(d));
    const double error = std::abs(dot(q, k) - gamma * dot(q, ks.inside)) / root;
    const double first = norm(qs.outside) * norm(ks.outside) / root;
    const double second = std::abs(1.0 - gamma) * norm(qs.inside) * norm(ks.inside) / root;
    const double rounding = 1e-12 * norm(q) * norm(k);
    ASSERT_LE(error, first + second + rounding) << "trial " << trials;
    if (gamma != 1.0 && error > first + rounding) ++broken;
  }
  // Not a curiosity: without the second term the bound is wrong for many pairs.
  EXPECT_GT(broken, trials / 10);
}

TEST(LogitBound, CounterexampleToTheBoundWithoutItsSecondTerm) {
  // r = 1 of d = 4, query and key both along the basis: nothing is lost by projecting, so the
  // bound without the second term is 0; gamma = sqrt(r / d) = 1/2 halves the logit.
  const std::vector<float> basis{1, 0, 0, 0};
  const std::vector<double> q{2, 0, 0, 0}, k{3, 0, 0, 0};
  const Split qs = project(basis, 4, q), ks = project(basis, 4, k);
  const double gamma = std::sqrt(1.0 / 4.0), root = 2.0;
  const double error = std::abs(dot(q, k) - gamma * dot(q, ks.inside)) / root;
  EXPECT_EQ(norm(qs.outside) * norm(ks.outside), 0.0);
  EXPECT_EQ(error, 1.5);
  EXPECT_EQ(std::abs(1.0 - gamma) * norm(qs.inside) * norm(ks.inside) / root, 1.5);
}

TEST(LogitBound, LeastSquaresGammaIsTheBestOne) {
  Random random(12);
  for (int trial = 0; trial < 200; ++trial) {
    const std::size_t d = 16, r = 1 + random.below(15);
    const auto t = testing::random_transform(r, d, false, random);
    double ll = 0.0, lm = 0.0, mm = 0.0;
    for (int i = 0; i < 100; ++i) {
      std::vector<double> q(d), k(d);
      for (double& x : q) x = random.normal();
      for (double& x : k) x = random.normal() + 0.3;
      const double l = dot(q, k), m = dot(q, project(t.analysis, d, k).inside);
      ll += l * l;
      lm += l * m;
      mm += m * m;
    }
    const auto error = [&](double gamma) { return ll - 2.0 * gamma * lm + gamma * gamma * mm; };
    const double best = lm / mm;
    for (const double gamma : {1.0, std::sqrt(double(r) / double(d)), best * 1.01, best * 0.99}) {
      ASSERT_LE(error(best), error(gamma) + 1e-9 * ll);
    }
  }
}

std::vector<double> softmax(const std::vector<double>& logits) {
  double max = -1e300, sum = 0.0;
  for (const double l : logits) max = std::max(max, l);
  std::vector<double> a;
  for (const double l : logits) sum += std::exp(l - max);
  for (const double l : logits) a.push_back(std::exp(l - max) / sum);
  return a;
}

TEST(SoftmaxBound, WeightsMoveByAtMostTwiceTanhOfHalfTheLogitError) {
  Random random(13);
  for (int trial = 0; trial < 20000; ++trial) {
    const std::size_t n = 1 + random.below(40);
    const double size = std::pow(10.0, -2.0 + 6.0 * random.uniform());
    const double e = std::pow(10.0, -4.0 + 5.0 * random.uniform());
    std::vector<double> l(n), m(n);
    double worst = 0.0;
    for (std::size_t i = 0; i < n; ++i) {
      l[i] = size * random.normal();
      // Half of the trials at the corners of the allowed box, where the bound is nearly met.
      m[i] = l[i] + (trial % 2 ? e * (2.0 * random.uniform() - 1.0) : random.below(2) ? e : -e);
      worst = std::max(worst, std::abs(l[i] - m[i]));
    }
    const auto a = softmax(l), b = softmax(m);
    double moved = 0.0;
    for (std::size_t i = 0; i < n; ++i) moved += std::abs(a[i] - b[i]);
    // Logits up to 3e4 carry roundings of 3e4 * 2^-53, and so does each exponent.
    const double rounding = 1e-14 * (1.0 + 10.0 * size);
    ASSERT_LE(moved, 2.0 * std::tanh(worst / 2.0) + rounding) << "trial " << trial;
    ASSERT_LE(2.0 * std::tanh(worst / 2.0), worst);
  }
}

TEST(SoftmaxBound, IsMetByTwoTokensMovedApart) {
  for (const double e : {1e-3, 0.1, 1.0, 5.0}) {
    const auto a = softmax({0.0, e}), b = softmax({e, 0.0});  // each logit moves by e
    EXPECT_NEAR(std::abs(a[0] - b[0]) + std::abs(a[1] - b[1]), 2.0 * std::tanh(e / 2.0), 1e-14);
  }
}

TEST(OutputBound, HoldsAndItsSumIsTighterThanTheOperatorNorm) {
  Random random(14);
  int tighter = 0;
  const int trials = 5000;
  for (int trial = 0; trial < trials; ++trial) {
    const std::size_t n = 1 + random.below(30), d = 1 + random.below(16);
    const double scale = std::pow(10.0, -3.0 + 6.0 * random.uniform());
    const double e = std::pow(10.0, -4.0 + 4.5 * random.uniform());
    std::vector<double> l(n), m(n), lost(n), o(d), p(d);
    std::vector<std::vector<double>> v(n), w(n);
    double largest = 0.0, frobenius = 0.0, worst = 0.0;
    for (std::size_t i = 0; i < n; ++i) {
      l[i] = 3.0 * random.normal();
      m[i] = l[i] + e * (2.0 * random.uniform() - 1.0);
      worst = std::max(worst, std::abs(l[i] - m[i]));
      const double off = scale * 0.3 * random.uniform() * std::exp(random.normal());
      for (std::size_t j = 0; j < d; ++j) {
        v[i].push_back(scale * random.normal() * std::exp(random.normal()));
        w[i].push_back(v[i][j] + off * random.normal());
        lost[i] += (v[i][j] - w[i][j]) * (v[i][j] - w[i][j]);
      }
      frobenius += lost[i];
      lost[i] = std::sqrt(lost[i]);
      largest = std::max(largest, norm(v[i]));
    }
    const auto a = softmax(l), b = softmax(m);
    double sum = 0.0, b_norm = norm(b);
    for (std::size_t i = 0; i < n; ++i) {
      sum += b[i] * lost[i];
      for (std::size_t j = 0; j < d; ++j) {
        o[j] += a[i] * v[i][j];
        p[j] += b[i] * w[i][j];
      }
    }
    for (std::size_t j = 0; j < d; ++j) o[j] -= p[j];
    const double bound = 2.0 * std::tanh(worst / 2.0) * largest + sum;
    ASSERT_LE(norm(o), bound * (1.0 + 1e-12) + 1e-14 * largest);
    // |dV|_op is at least |dV|_F / sqrt(min(n, d)); the document's term is |dV|_op itself.
    if (sum < std::sqrt(frobenius / double(std::min(n, d)))) ++tighter;
    ASSERT_LE(b_norm, 1.0 + 1e-12);
  }
  EXPECT_GT(tighter, trials * 8 / 10);
}

// Lines 3 and 4 for every pair of a query and a key of real models, under the leading directions of
// the keys: the bound of each logit, then that of the softmax over all of them.
TEST(LogitBound, AndTheSoftmaxBoundHoldOnActivationsOfModels) {
  for (const testing::Activations& a : testing::all_activations()) {
    const LayerShape& l = a.layer;
    const auto d = std::size_t(l.key_dim), n = std::size_t(a.tokens);
    const auto kv_heads = std::size_t(l.kv_heads), query_heads = std::size_t(l.query_heads);
    for (std::size_t h = 0; h < query_heads; ++h) {
      const std::size_t kv = h / (query_heads / kv_heads);
      const float* keys = a.keys.data() + kv * d;
      const std::size_t rank = h % 2 ? d / 4 : d / 2;
      const auto basis = testing::leading_directions(keys, n, kv_heads * d, d, rank);
      const double gamma = h % 3 == 0 ? 1.0 : std::sqrt(double(rank) / double(d));
      std::vector<Split> split;
      for (std::size_t t = 0; t < n; ++t) {
        split.push_back(project(basis, d, {keys + t * kv_heads * d, keys + t * kv_heads * d + d}));
      }
      for (std::size_t i = 0; i < n; i += 3) {
        const float* row = a.queries.data() + (i * query_heads + h) * d;
        const std::vector<double> q(row, row + d);
        const Split qs = project(basis, d, q);
        std::vector<double> exact, coded;
        double worst = 0.0, size = 0.0;
        for (std::size_t t = 0; t <= i; ++t) {
          const double inside = dot(q, split[t].inside), outside = dot(q, split[t].outside);
          exact.push_back(double{l.logit_scale} * (inside + outside));
          coded.push_back(double{l.logit_scale} * gamma * inside);
          const double bound = double{l.logit_scale} *
                               (norm(qs.outside) * norm(split[t].outside) +
                                std::abs(1.0 - gamma) * norm(qs.inside) * norm(split[t].inside));
          const double rounding = 1e-12 * norm(q) * (norm(split[t].inside) + 1.0);
          ASSERT_LE(std::abs(exact[t] - coded[t]), bound + rounding) << a.name << ", token " << t;
          worst = std::max(worst, std::abs(exact[t] - coded[t]));
          size = std::max(size, std::abs(exact[t]));
        }
        const auto weights = softmax(exact), moved = softmax(coded);
        double change = 0.0;
        for (std::size_t t = 0; t <= i; ++t) change += std::abs(weights[t] - moved[t]);
        ASSERT_LE(change, 2.0 * std::tanh(worst / 2.0) + 1e-14 * (10.0 + size)) << a.name;
      }
    }
  }
}

}  // namespace
}  // namespace kvspan
