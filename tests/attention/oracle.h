// SPDX-License-Identifier: Apache-2.0
// Attention written down plainly in double precision, and random problems for it. Knows nothing of
// segments, tiles or kernels: tokens are rows of arrays.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "attention/attend.h"
#include "base/half.h"
#include "base/random.h"
#include "base/thread_pool.h"
#include "cache/segments/segment_list.h"

namespace kvspan::testing {

inline constexpr double kUnit = 0x1p-24;  // unit roundoff of f32

// Whether a query at `query` sees a token at `position`.
inline bool sees(const LayerShape& s, std::int32_t query, std::int32_t position) {
  return position <= query && (s.window == 0 || position > query - s.window) &&
         (s.chunk == 0 || position / s.chunk == query / s.chunk);
}
// What distance adds to the logit.
inline double alibi_of(const LayerShape& s, std::int32_t head, std::int32_t query,
                       std::int32_t position) {
  return s.alibi.empty() ? 0.0 : -double{s.alibi[std::size_t(head)]} * (query - position);
}

struct Problem {
  LayerShape layer;
  Element element = Element::kF16;
  std::int32_t tokens = 0;
  std::vector<std::int32_t> positions;        // [tokens]
  std::vector<std::int32_t> query_positions;  // [n]
  std::vector<float> keys, values, queries;   // [tokens, kv_heads, dim], [n, query_heads, key_dim]

  TensorView<const float, 3> keys_view() const {
    return {keys.data(),
            {positions.size(), std::size_t(layer.kv_heads), std::size_t(layer.key_dim)}};
  }
  TensorView<const float, 3> values_view() const {
    return {values.data(),
            {positions.size(), std::size_t(layer.kv_heads), std::size_t(layer.value_dim)}};
  }
  Queries queries_view() const {
    return {{queries.data(),
             {query_positions.size(), std::size_t(layer.query_heads), std::size_t(layer.key_dim)}},
            query_positions};
  }
  std::size_t out_size() const {
    return query_positions.size() * std::size_t(layer.query_heads) * std::size_t(layer.value_dim);
  }
};

// Positions 0 .. tokens-1; the queries are the last n of them.
inline Problem random_problem(const LayerShape& layer, Element element, std::int32_t tokens,
                              std::int32_t n, std::uint64_t seed) {
  Problem p;
  p.layer = layer;
  p.element = element;
  p.tokens = tokens;
  Random random(seed);
  for (std::int32_t t = 0; t < tokens; ++t) p.positions.push_back(t);
  for (std::int32_t i = 0; i < n; ++i) p.query_positions.push_back(std::max(0, tokens - n) + i);
  const auto fill = [&](std::vector<float>& to, std::size_t size, double scale) {
    to.resize(size);
    for (float& x : to) x = static_cast<float>(scale * random.normal());
  };
  const auto rows = static_cast<std::size_t>(tokens) * std::size_t(layer.kv_heads);
  fill(p.keys, rows * std::size_t(layer.key_dim), 1.0);
  fill(p.values, rows * std::size_t(layer.value_dim), 1.0);
  fill(p.queries, std::size_t(n) * std::size_t(layer.query_heads * layer.key_dim), 1.0);
  return p;
}

inline SegmentList list_of(const Problem& p) {
  SegmentList list({p.layer.kv_heads, p.layer.key_dim, p.layer.value_dim, p.element},
                   std::make_shared<Ledger>());
  list.extend(p.positions);
  for (std::int32_t h = 0; h < p.layer.kv_heads; ++h) {
    list.write(0, p.keys_view(), p.values_view(), h, 0, p.tokens);
  }
  return list;
}

struct Exact {
  std::vector<double> out;        // [n, query_heads, value_dim]
  std::vector<double> lse;        // [n, query_heads]
  std::vector<double> out_bound;  // [n, query_heads]: what f32 may be off by, see exact_attention
  std::vector<double> lse_bound;
};

// The bound. A computed score (natural units) differs by at most
//     delta = (key_dim + 8) u scale |q||k|  [+ 8 c u with a soft cap c] [+ 4 u |bias|]:
// key_dim roundings of products and sums, a few for the factors. The
// weights then differ by 2 tanh(delta) in the 1-norm (each score moves by delta, their differences
// by 2 delta). The exponential adds 2^-22 to each weight and to their sum, accumulation of L terms
// in sequence L u relative to sum a|v| <= max|v|. The norm of out is bounded coordinate by
// coordinate. L: at most a chunk's tokens, and the merges.
inline Exact exact_attention(const Problem& p, double longest_chain) {
  const LayerShape& s = p.layer;
  const auto stored = [&](float x) {
    return p.element == Element::kF16 ? double{to_float(to_half(x))} : double{x};
  };
  const std::int32_t group = s.query_heads / s.kv_heads;
  Exact exact;
  exact.out.assign(p.out_size(), 0.0);
  for (std::size_t i = 0; i < p.query_positions.size(); ++i) {
    for (std::int32_t h = 0; h < s.query_heads; ++h) {
      const float* q = p.queries.data() +
                       (i * std::size_t(s.query_heads) + std::size_t(h)) * std::size_t(s.key_dim);
      std::vector<double> logits;
      std::vector<std::size_t> seen;
      double delta = 0.0, max_v = 0.0;
      for (std::size_t t = 0; t < p.positions.size(); ++t) {
        if (!sees(s, p.query_positions[i], p.positions[t])) continue;
        const auto row = t * std::size_t(s.kv_heads) + std::size_t(h / group);
        const float* k = p.keys.data() + row * std::size_t(s.key_dim);
        const float* v = p.values.data() + row * std::size_t(s.value_dim);
        double dot = 0.0, qq = 0.0, kk = 0.0;
        for (std::int32_t c = 0; c < s.key_dim; ++c) {
          dot += double{q[c]} * stored(k[c]);
          qq += double{q[c]} * double{q[c]};
          kk += stored(k[c]) * stored(k[c]);
        }
        double logit = double{s.logit_scale} * dot;
        double error = (s.key_dim + 8) * kUnit * std::abs(s.logit_scale) * std::sqrt(qq * kk);
        if (s.soft_cap > 0.0f) {
          logit = s.soft_cap * std::tanh(logit / s.soft_cap);
          error += 8 * double{s.soft_cap} * kUnit;
        }
        const double bias = alibi_of(s, h, p.query_positions[i], p.positions[t]);
        error += 4 * kUnit * std::abs(bias);
        logits.push_back(logit + bias);
        seen.push_back(row);
        delta = std::max(delta, error);
        for (std::int32_t c = 0; c < s.value_dim; ++c) {
          max_v = std::max(max_v, std::abs(stored(v[c])));
        }
      }
      if (logits.empty()) {
        exact.lse.push_back(-std::numeric_limits<double>::infinity());
        exact.out_bound.push_back(0.0);
        exact.lse_bound.push_back(0.0);
        continue;
      }
      const double max = *std::max_element(logits.begin(), logits.end());
      double sum = 0.0;
      for (const double logit : logits) sum += std::exp(logit - max);
      double* out = exact.out.data() +
                    (i * std::size_t(s.query_heads) + std::size_t(h)) * std::size_t(s.value_dim);
      for (std::size_t j = 0; j < logits.size(); ++j) {
        const double a = std::exp(logits[j] - max) / sum;
        const float* v = p.values.data() + seen[j] * std::size_t(s.value_dim);
        for (std::int32_t c = 0; c < s.value_dim; ++c) out[c] += a * stored(v[c]);
      }
      const double chain = std::min(longest_chain, double(logits.size())) + 16.0;
      exact.lse.push_back(max + std::log(sum));
      exact.out_bound.push_back((2.0 * std::tanh(delta) + 2 * 0x1p-22 + 2 * chain * kUnit) * max_v);
      exact.lse_bound.push_back(delta + 0x1p-22 + chain * kUnit +
                                2 * kUnit * std::abs(max + std::log(sum)));
    }
  }
  return exact;
}

struct Attended {
  std::vector<float> out, lse;
};
inline Attended attend(const Problem& p, const SegmentList& list, int threads = 1) {
  Attended result;
  const auto n = p.query_positions.size();
  const auto heads = std::size_t(p.layer.query_heads);
  result.out.assign(p.out_size(), -77.0f);
  result.lse.assign(n * heads, -77.0f);
  AttentionScratch scratch;
  ThreadPool pool(threads);
  pool.run([&](Team& team) {
    const TensorView<float, 3> out(result.out.data(), {n, heads, std::size_t(p.layer.value_dim)});
    const TensorView<float, 2> lse(result.lse.data(), {n, heads});
    (void)attend_segments(p.layer, list, p.queries_view(), out, lse, scratch, team);
  });
  return result;
}

}  // namespace kvspan::testing
