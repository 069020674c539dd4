// SPDX-License-Identifier: Apache-2.0
// Random tokens of bands and queries to them, and attention to them written down plainly in double.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <set>
#include <vector>

#include "attention/bands/attend_bands.h"
#include "base/random.h"
#include "base/thread_pool.h"
#include "cache/bands/bands_residuals.h"
#include "tests/attention/oracle.h"

namespace kvspan::bands_testing {

struct Problem {
  LayerShape layer;
  std::shared_ptr<const BandsCode> code, values_code;
  BandsStore keys, values;
  std::vector<float> query_rows;
  std::vector<std::int32_t> positions;
  std::vector<std::int32_t> some;  // tiles that are read; none: all

  const BandsStore& value_store() const { return values_code == code ? keys : values; }
  bool fine() const { return code->fine() || values_code->fine(); }
};

// A code with a random well-conditioned transform; bits from 0 to 8, or to 4, so that some codes are fine() and some not.
// anchor: 0 keys after RoPE, -1 before it.
inline std::shared_ptr<const BandsCode> random_code(const LayerShape& l, bool keys, bool values,
                                             std::int32_t anchor, bool gain, Random& random) {
  const auto d =
      static_cast<std::size_t>(l.kv_heads * ((keys ? l.key_dim : 0) + (values ? l.value_dim : 0)));
  std::vector<float> a(d * d), b(d * d), key_mean, value_mean, steps(d), sigma(d);
  std::vector<std::uint8_t> bits(d);
  const std::uint32_t widths = random.below(2) == 0 ? 8 : 5;
  // Givens rotations of the identity, scaled: the inverse is known.
  for (std::size_t i = 0; i < d; ++i) {
    a[i * d + i] = b[i * d + i] = 1.0f;
  }
  for (std::size_t k = 0; k < 4 * d; ++k) {
    const std::size_t i = random.below(std::uint32_t(d)), j = random.below(std::uint32_t(d));
    if (i == j) continue;
    const float c = float(std::cos(double(k))), s = float(std::sin(double(k)));
    for (std::size_t x = 0; x < d; ++x) {
      const float p = a[i * d + x], q = a[j * d + x];
      a[i * d + x] = c * p + s * q;
      a[j * d + x] = c * q - s * p;
    }
  }
  for (std::size_t i = 0; i < d; ++i) {
    const float scale = float(std::pow(2.0, 2.0 * random.uniform() - 1.0));
    for (std::size_t x = 0; x < d; ++x) {
      b[x * d + i] = a[i * d + x] / scale;
      a[i * d + x] *= scale;
    }
    const int levels[] = {0, 1, 2, 3, 4, 5, 6, 8};
    bits[i] = std::uint8_t(levels[random.below(widths)]);
    sigma[i] = scale;
    steps[i] = 3.0f * scale / float(1 << std::max(int(bits[i]), 1));
  }
  bits[0] = 4;
  if (keys) key_mean.resize(std::size_t(l.kv_heads * l.key_dim));
  if (values) value_mean.resize(std::size_t(l.kv_heads * l.value_dim));
  for (float& x : key_mean) x = float(random.normal());
  for (float& x : value_mean) x = float(random.normal());
  BandsParts parts;
  parts.heads = l.kv_heads;
  parts.key_dim = keys ? l.key_dim : 0;
  parts.value_dim = values ? l.value_dim : 0;
  parts.anchor_block = keys ? std::max(anchor, 0) : 0;
  parts.before_rope = anchor < 0;
  parts.rope = l.rope;
  parts.key_mean = key_mean;
  parts.value_mean = value_mean;
  parts.analysis = {a.data(), {d, d}};
  parts.synthesis = {b.data(), {d, d}};
  parts.bits = bits;
  parts.steps = steps;
  parts.sigma = sigma;
  parts.gain = gain;
  return BandsCode::create(parts, nullptr).value();
}

// With `exact`, norms are kept, and say that the rows that were coded are those that attention
// reads.
inline Problem random_problem(std::int32_t tiles, std::int32_t queries, bool joint, std::int32_t anchor,
                       Random& random, bool exact = false) {
  Problem p;
  LayerShape& l = p.layer;
  l.kv_heads = 1 + std::int32_t(random.below(3));
  l.query_heads = l.kv_heads * (1 + std::int32_t(random.below(4)));
  l.key_dim = 8 * (1 + std::int32_t(random.below(4)));
  l.value_dim = l.key_dim;
  l.rope.rotated_dims = tiles % 3 == 0 ? l.key_dim / 2 : l.key_dim;
  l.rope.pairs = tiles % 2 == 0 ? Rope::Pairs::kNeighbours : Rope::Pairs::kHalves;
  for (std::int32_t i = 0; i < l.rope.rotated_dims / 2; ++i) {
    l.rope.angles.push_back(std::pow(0.5, i));
  }
  l.logit_scale = 1.0f / std::sqrt(float(l.key_dim));
  const bool gain = random.below(3) != 0;
  p.code = random_code(l, true, joint, anchor, gain, random);
  p.values_code = joint ? p.code : random_code(l, false, true, anchor, gain, random);
  p.keys = BandsStore(p.code, nullptr, exact);
  p.values = BandsStore(p.values_code, nullptr, exact);
  const auto width = std::size_t(l.kv_heads * l.key_dim);
  std::vector<float> k(width), v(width);
  const std::int32_t first = 32;
  for (std::int32_t tile = 0; tile < tiles; ++tile) {
    const std::uint16_t escaped = random.below(4) == 0 ? 1u << random.below(16) : 0u;
    for (BandsStore* store : {&p.keys, &p.values}) {
      if (store == &p.values && joint) continue;
      const BandsCode& code = store->code();
      std::vector<std::int8_t> codes(16 * std::size_t(code.places())), gains(16);
      std::vector<float> z(std::size_t(code.width())), work(std::size_t(code.places()));
      const std::vector<BFloat16> norms(16 * std::size_t(BandsStore::residual_norms(code)));
      for (std::size_t t = 0; t < 16; ++t) {
        for (float& x : k) x = float(random.normal());
        for (float& x : v) x = float(random.normal() * 2.0);
        code.gather(k.data(), v.data(), first + 16 * tile + std::int32_t(t), z.data());
        code.encode(z.data(), codes.data() + t * std::size_t(code.places()), &gains[t],
                    work.data());
      }
      store->append(first + 16 * tile, codes.data(), gains.data(), escaped,
                    exact ? norms.data() : nullptr);
    }
  }
  p.query_rows.resize(std::size_t(queries * l.query_heads * l.key_dim));
  for (float& x : p.query_rows) x = float(random.normal());
  for (std::int32_t i = 0; i < queries; ++i) p.positions.push_back(first + 16 * tiles + i);
  return p;
}

// Queries at any positions: before all tokens, among them and after.
inline void ask_anywhere(Problem& p, Random& random) {
  const std::size_t n = p.positions.size();
  const auto range = std::uint32_t(p.keys.tokens()) + std::uint32_t(n) + 4;
  std::set<std::int32_t> positions;
  while (positions.size() < n) {
    positions.insert(p.keys.first_position() - 2 + std::int32_t(random.below(range)));
  }
  p.positions.assign(positions.begin(), positions.end());
}

// One query at every position, of long texts at some, its numbers all 0: every token that it sees has the same logit.
inline void ask_for_counts(Problem& p) {
  p.positions.clear();
  const std::int32_t step = p.keys.tiles() > 20 ? 7 : 1;
  for (std::int32_t t = p.keys.first_position() - 1; t <= p.keys.next_position(); t += step) {
    p.positions.push_back(t);
  }
  p.query_rows.assign(p.positions.size() * std::size_t(p.layer.query_heads * p.layer.key_dim), 0.0f);
}

struct Attended {
  std::vector<float> out, lse;
};

inline Queries queries_of(const Problem& p) {
  return {{p.query_rows.data(),
           {p.positions.size(), std::size_t(p.layer.query_heads), std::size_t(p.layer.key_dim)}},
          p.positions};
}

// others: log-sum-exps of other tokens, whose values are all 0; empty where there are none.
inline Attended attend(const Problem& p, int threads = 1, const std::vector<float>& others = {}) {
  const auto n = p.positions.size(), heads = std::size_t(p.layer.query_heads);
  const auto d = std::size_t(p.layer.value_dim);
  Attended got{std::vector<float>(n * heads * d), others};
  got.lse.resize(n * heads);
  AttentionScratch scratch;
  ThreadPool pool(threads);
  pool.run([&](Team& team) {
    EXPECT_TRUE(attend_bands(p.layer, 0, p.keys, p.value_store(), p.some, queries_of(p),
                             {got.out.data(), {n, heads, d}}, {got.lse.data(), {n, heads}},
                             !others.empty(), scratch, team));
  });
  return got;
}

// Rebuilt rows and plain softmax, in double.
struct Expected {
  std::vector<float> k, v;  // [tokens, heads, dim]
  double lse = 0.0, spread = 0.0;
  double heaviest = 0.0;  // the largest weight, of all that sum to 1
  std::vector<double> weights, out;
  bool sees = false;

  explicit Expected(const Problem& p) {
    const auto width = std::size_t(p.layer.kv_heads * p.layer.key_dim);
    k.resize(std::size_t(p.keys.tokens()) * width);
    v.resize(k.size());
    for (std::int32_t t = 0; t < p.keys.tokens(); ++t) {
      for (const BandsStore* store : {&p.keys, &p.value_store()}) {
        std::vector<float> c(std::size_t(store->code().places()));
        store->coefficients(t, c.data());
        store->code().restore(c.data(), store->first_position() + t,
                              k.data() + std::size_t(t) * width, v.data() + std::size_t(t) * width);
      }
    }
  }
  // Keys with B_k in 8 bits, as integer products read them.
  void read_keys(const Problem& p) {
    const BandsResiduals reader(*p.code);
    const auto dim = std::size_t(p.layer.key_dim);
    std::vector<std::int8_t> tile(p.code->layout().unpacked_bytes());
    std::vector<std::int8_t> codes(std::size_t(p.code->places()));
    std::vector<double> x(dim);
    float* to = k.data();
    for (std::int32_t t = 0; t < p.keys.tokens(); ++t) {
      p.keys.unpack(t / 16, tile.data());
      for (std::size_t i = 0; i < codes.size(); ++i) {
        codes[i] = tile[i / 4 * 64 + std::size_t(t % 16) * 4 + i % 4];
      }
      for (std::int32_t h = 0; h < p.layer.kv_heads; ++h, to += dim) {
        const std::int32_t position = p.keys.first_position() + t;
        reader.read_key(h, codes.data(), p.keys.gains(t / 16)[t % 16], x.data());
        for (std::size_t j = 0; j < dim; ++j) to[j] = float(x[j]);
        p.code->to_key(h, position, to);
      }
    }
  }
  void attend(const Problem& p, std::size_t i, std::size_t h) {
    const LayerShape& l = p.layer;
    const auto d = std::size_t(l.value_dim), width = std::size_t(l.kv_heads) * d;
    const std::size_t head = h / std::size_t(l.query_heads / l.kv_heads);
    const float* q = queries_of(p).rows.row(i, h);
    std::vector<double> logits(std::size_t(p.keys.tokens()), -1e300);
    double most = -1e300, total = 0.0;
    for (std::int32_t t = 0; t < p.keys.tokens(); ++t) {
      if (p.keys.escaped(t / 16) >> (t % 16) & 1) continue;
      const std::int32_t position = p.keys.first_position() + t;
      if (!testing::sees(l, p.positions[i], position)) continue;
      if (!p.some.empty() && std::find(p.some.begin(), p.some.end(), t / 16) == p.some.end()) {
        continue;
      }
      double sum = 0.0;
      for (std::size_t j = 0; j < d; ++j) {
        sum += double{q[j]} * k[std::size_t(t) * width + head * d + j];
      }
      logits[std::size_t(t)] =
          sum * l.logit_scale + testing::alibi_of(l, std::int32_t(h), p.positions[i], position);
      most = std::max(most, logits[std::size_t(t)]);
    }
    sees = most > -1e200;
    out.assign(d, 0.0);
    weights.assign(logits.size(), 0.0);
    spread = 0.0;
    for (std::size_t t = 0; t < logits.size() && sees; ++t) {
      const double w = std::exp(logits[t] - most);
      weights[t] = w;
      total += w;
      for (std::size_t j = 0; j < d; ++j) {
        const double x = v[t * width + head * d + j];
        out[j] += w * x;
        if (w > 0.0) spread = std::max(spread, std::abs(x));
      }
    }
    for (double& x : out) x /= sees ? total : 1.0;
    for (double& x : weights) x /= sees ? total : 1.0;
    lse = most + std::log(total);
    heaviest = 1.0 / total;
  }
};

}  // namespace kvspan::bands_testing
