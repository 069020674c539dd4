// SPDX-License-Identifier: Apache-2.0
// What errors of old tokens cost, against attention in double precision over rows that have them.
#include "api/attention_metrics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "cache/visible.h"
#include "tests/method/synthetic.h"

namespace kvspan {
namespace attention_metrics_test {

using testing::SyntheticText;

constexpr std::int32_t kTokens = 104, kSkip = 6, kBlock = 48, kHidden = 11;  // 98 count, a multiple of 7

// Four query heads and two KV heads of 10 and 6 numbers, and all that may bend a score.
LayerShape layer_shape(std::int32_t window) {
  LayerShape shape = testing::synthetic_shape(1, 2, 10).layers[0];
  shape.value_dim = 6;
  shape.window = window;
  shape.soft_cap = 3.0f;
  shape.alibi = {0.01f, 0.02f, 0.0f, 0.03f};
  shape.sinks = {0.5f, -1.0f, 2.0f, 0.0f};
  return shape;
}

// Wo of each query head, [kHidden][value_dim].
std::vector<float> made_up_output(const LayerShape& shape) {
  std::vector<float> rows(std::size_t(shape.query_heads * kHidden * shape.value_dim));
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = std::sin(float(i * i % 97) + 0.3f * float(i));
  return rows;
}

std::vector<float> products_of(const LayerShape& shape, const std::vector<float>& output) {
  const auto d = std::size_t(shape.value_dim);
  std::vector<float> products;
  for (std::size_t g = 0; g < std::size_t(shape.query_heads); ++g) {
    for (std::size_t i = 0; i < d * d; ++i) {
      double sum = 0.0;
      for (std::size_t o = 0; o < kHidden; ++o) {
        const float* row = output.data() + (g * kHidden + o) * d;
        sum += double{row[i / d]} * row[i % d];
      }
      products.push_back(float(sum));
    }
  }
  return products;
}

AttentionMetrics gathered(const SyntheticText& text, const std::vector<float>& output, std::int32_t block, int threads) {
  const LayerShape& shape = text.shape().layers[0];
  AttentionMetrics metrics(shape, kTokens, kSkip, kBlock);
  metrics.set_output(products_of(shape, output));
  ThreadPool pool(threads);
  std::int64_t counted = 0;
  for (int sequence = 0; sequence < 2; ++sequence) {  // the same again: nothing of the first is left
    for (std::int32_t at = 0; at < kTokens; at += block) {
      const std::int32_t n = std::min(block, kTokens - at);
      pool.run([&](Team& team) {
        metrics.add_rows(text.rows(0, at, n), team);
        metrics.add_queries(text.queries(0, at, n), counted, team);
      });
      counted += std::max(0, n - std::max(0, kSkip - at));
    }
  }
  return metrics;
}

// What one query head adds to the stream, errors of old keys and values times `scale` included.
std::vector<double> read(const SyntheticText& text, const std::vector<float>& output, std::int32_t t, std::size_t head,
                         const std::vector<double>& errors, double scale) {
  const LayerShape& shape = text.shape().layers[0];
  const auto dk = std::size_t(shape.key_dim), dv = std::size_t(shape.value_dim);
  const std::size_t kv = head / std::size_t(shape.query_heads / shape.kv_heads);
  const float* q = text.queries(0, t, 1).rows.row(0, head);
  const std::int32_t first = first_seen(shape, t);
  std::vector<double> weights, out(kHidden), sum(dv);
  double total = std::exp(double{shape.sinks[head]});
  const auto error = [&](std::int32_t j) {
    const bool old = j >= kSkip && j <= t - (t - first + 1) / 4;
    return old ? errors.data() + (std::size_t(j) * std::size_t(shape.kv_heads) + kv) * (dk + dv) : nullptr;
  };
  for (std::int32_t j = first; j <= t; ++j) {
    const float* k = text.rows(0, j, 1).keys.row(0, kv);
    double score = 0.0;
    for (std::size_t i = 0; i < dk; ++i) score += q[i] * (k[i] + (error(j) ? scale * error(j)[i] : 0.0));
    score = shape.soft_cap * std::tanh(score * shape.logit_scale / shape.soft_cap) - shape.alibi[head] * (t - j);
    weights.push_back(std::exp(score));
    total += weights.back();
  }
  for (std::int32_t j = first; j <= t; ++j) {
    const float* v = text.rows(0, j, 1).values.row(0, kv);
    for (std::size_t i = 0; i < dv; ++i) {
      sum[i] += weights[std::size_t(j - first)] / total * (v[i] + (error(j) ? scale * error(j)[dk + i] : 0.0));
    }
  }
  for (std::size_t o = 0; o < kHidden; ++o) {
    for (std::size_t i = 0; i < dv; ++i) out[o] += output[(head * kHidden + o) * dv + i] * sum[i];
  }
  return out;
}

// The mean square of what errors along a line change, of keys or values of one KV head, is what the metric says of it.
TEST(AttentionMetrics, SayWhatErrorsChange) {
  for (const std::int32_t window : {0, 40}) {
    const SyntheticText text({{layer_shape(window)}}, kTokens, 3);
    const LayerShape& shape = text.shape().layers[0];
    const std::vector<float> output = made_up_output(shape);
    const AttentionMetrics metrics = gathered(text, output, kBlock, 1);
    const auto dk = std::size_t(shape.key_dim), dv = std::size_t(shape.value_dim);
    for (const bool keys : {true, false}) {
      const std::vector<float> metric = keys ? metrics.key_metric(1.0) : metrics.value_metric(1.0);
      const std::size_t d = keys ? dk : dv, from = keys ? 0 : dk;
      for (std::size_t kv = 0; kv < 2; ++kv) {
        std::vector<double> direction(d);  // errors along one line
        for (std::size_t i = 0; i < d; ++i) direction[i] = std::cos(double(3 * i + kv));
        double expected = 0.0;
        for (std::size_t i = 0; i < d * d; ++i) expected += metric[kv * d * d + i] * direction[i / d] * direction[i % d];
        // Errors of different tokens are independent: their squares add up.
        constexpr double kScale = 1e-4;
        double measured = 0.0;
        std::size_t queries = 0;
        std::vector<double> errors(std::size_t(kTokens) * 2 * (dk + dv));
        for (std::int32_t t = kSkip; t < kTokens; t += 7, ++queries) {
          for (std::size_t head = 2 * kv; head < 2 * kv + 2; ++head) {
            const std::vector<double> without = read(text, output, t, head, errors, 0.0);
            for (std::size_t j = 0; j <= std::size_t(t); ++j) {
              double* error = errors.data() + (j * 2 + kv) * (dk + dv) + from;
              std::copy(direction.begin(), direction.end(), error);
              const std::vector<double> with = read(text, output, t, head, errors, kScale);
              std::fill_n(error, d, 0.0);
              for (std::size_t o = 0; o < kHidden; ++o) measured += std::pow((with[o] - without[o]) / kScale, 2.0);
            }
          }
        }
        measured /= double(queries);
        EXPECT_NEAR(measured, expected, 1e-3 * expected) << (keys ? "keys" : "values") << " of head " << kv << ", window " << window;
      }
    }
  }
}

TEST(AttentionMetrics, DoNotDependOnBlocksOrThreads) {
  const SyntheticText text({{layer_shape(0)}}, kTokens, 5);
  const std::vector<float> output = made_up_output(text.shape().layers[0]);
  const AttentionMetrics one = gathered(text, output, kBlock, 1), other = gathered(text, output, 13, 3);
  EXPECT_EQ(one.key_metric(1.0), other.key_metric(1.0));
  EXPECT_EQ(one.value_metric(1.0), other.value_metric(1.0));
}

// Engines fold any part of the logits' scale into their queries: the metrics are the same.
TEST(AttentionMetrics, DoNotDependOnWhereLogitsAreScaled) {
  LayerShape shape = layer_shape(0);
  const SyntheticText text({{shape}}, kTokens, 5);
  std::vector<float> scaled;
  const auto metric = [&](float factor) {
    shape.logit_scale = text.shape().layers[0].logit_scale / factor;
    AttentionMetrics metrics(shape, kTokens, kSkip, kTokens);
    ThreadPool pool(1);
    Queries queries = text.queries(0, 0, kTokens);
    scaled.assign(queries.rows.data, queries.rows.data + std::size_t(kTokens * 4 * shape.key_dim));
    for (float& x : scaled) x *= factor;
    queries.rows.data = scaled.data();
    pool.run([&](Team& team) {
      metrics.add_rows(text.rows(0, 0, kTokens), team);
      metrics.add_queries(queries, 0, team);
    });
    return metrics.key_metric(1.0);
  };
  EXPECT_EQ(metric(16.0f), metric(1.0f));  // a power of two, so that nothing is rounded
}

// A head that attends to nothing old counts a twentieth of the mean; without old tokens there is nothing to say.
TEST(AttentionMetrics, HeadsThatReadNothingKeepAShare) {
  LayerShape shape = layer_shape(0);
  shape.sinks = {0.0f, 0.0f, 60.0f, 60.0f};
  const SyntheticText text({{shape}}, kTokens, 5);
  AttentionMetrics metrics(shape, kTokens, kSkip, kTokens);
  EXPECT_TRUE(metrics.empty());
  ThreadPool pool(1);
  pool.run([&](Team& team) {
    metrics.add_rows(text.rows(0, 0, kTokens), team);
    metrics.add_queries(text.queries(0, 0, kTokens), 0, team);
  });
  EXPECT_FALSE(metrics.empty());
  const std::vector<float> metric = metrics.value_metric(1.0);
  const auto trace = [&](std::size_t head) {
    double sum = 0.0;
    for (std::size_t i = 0; i < 6; ++i) sum += metric[head * 36 + 7 * i];
    return sum;
  };
  EXPECT_NEAR(trace(1), 0.05 * trace(0) / 2.0, 1e-6 * trace(0));
}

}  // namespace attention_metrics_test
}  // namespace kvspan
