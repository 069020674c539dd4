// SPDX-License-Identifier: Apache-2.0
#include "attention/certificate/certificate.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "base/fail.h"

namespace kvspan {
namespace {

using detail::kRound;

constexpr double kWeightRound = 0x1p-21;  // of a weight: its exponential and the sum's

// The cap brings numbers no further apart.
void cap(double most, std::vector<Seen>& seen) {
  for (Seen& s : seen) {
    s.logit = most * std::tanh(s.logit / most);
    s.drift += 8.0 * kRound * most;
  }
}

// ALiBi, known exactly but for the f32 of its product and of the sum.
void lower_by_distance(double slope, std::int32_t position, std::vector<Seen>& seen) {
  for (Seen& s : seen) {
    const double bias = slope * (s.position - position);
    s.logit += bias;
    s.drift += 8.0 * kRound * std::abs(bias);
  }
}

// A layer's sink is one more token that everybody knows exactly, with a value of zeros.
Seen sink_token(double logit, const std::vector<float>& zeros) {
  Seen one;
  one.logit = logit;
  one.drift = 4.0 * kRound * std::abs(logit);
  one.value = zeros.data();
  return one;
}

// What logits that are off by at most `error` each make of the weights: |a - a^|_1 by line 4, or
// for errors that differ; and adds to off[i] what bounds |a_i - a^_i|. Exponents are added before
// they are raised: a weight that vanishes times an error that overflows would be no number.
double weights_bound(const std::vector<Seen>& seen, double Seen::*error, std::vector<double>& off) {
  double high = 0.0, low = 0.0, worst = 0.0;
  for (const Seen& s : seen) {
    high += std::exp(s.log_weight + s.*error);
    low += std::exp(s.log_weight - s.*error);
    worst = std::max(worst, s.*error);
  }
  double up = 0.0, down = 0.0;  // bounds of sum (a - a^)+ and sum (a^ - a)+, which are equal
  for (std::size_t i = 0; i < seen.size(); ++i) {
    const Seen& s = seen[i];
    const double more = std::exp(s.log_weight + s.*error) / low - s.weight;
    const double less = s.weight - std::exp(s.log_weight - s.*error) / high;
    up += more;
    down += less;
    off[i] += more < 1.0 ? std::max(more, less) : 1.0;  // also where it is not a number
  }
  double bound = 2.0 * std::tanh(worst / 2.0);
  if (up < bound) bound = std::min(bound, 2.0 * up);  // comparisons skip infinities and NaN
  if (down < bound) bound = std::min(bound, 2.0 * down);
  return bound;
}

// What rounding weights times scales may move the output by: a number is off by at most itself and
// a share of the largest among tokens that are rounded together.
double weight_rounding(const std::vector<Seen>& seen) {
  double sum = 0.0;
  for (std::size_t i = 0; i < seen.size();) {
    std::vector<double> largest;  // by place, from the first on
    const auto place = [&](std::size_t k) {
      return static_cast<std::size_t>(seen[k].place - seen[i].place);
    };
    std::size_t j = i;
    for (; j < seen.size() && seen[j].together == seen[i].together; ++j) {
      largest.resize(std::max(largest.size(), place(j) + 1), 0.0);
      largest[place(j)] = std::max(largest[place(j)], seen[j].most * seen[j].step);
    }
    for (std::size_t k = i; k < j; ++k) {
      double together = 0.0;
      const auto reach = static_cast<std::size_t>(seen[k].reach);
      const std::size_t first = place(k) > reach ? place(k) - reach : 0;
      for (std::size_t p = first; p < std::min(largest.size(), place(k) + reach + 1); ++p) {
        together = std::max(together, largest[p]);
      }
      sum += seen[k].codes * std::min(seen[k].share * together, seen[k].most * seen[k].step);
    }
    i = j;
  }
  return 1.01 * sum;
}

Certificate certificate_of(std::vector<Seen>& seen, std::size_t dim) {
  Certificate result;
  double max = -std::numeric_limits<double>::infinity(), sum = 0.0;
  for (const Seen& s : seen) max = std::max(max, s.logit);
  for (const Seen& s : seen) sum += std::exp(s.logit - max);
  std::vector<double> out(dim, 0.0);
  double rounding = 0.0, least = 0.0;
  for (Seen& s : seen) {
    s.log_weight = s.logit - max - std::log(sum);
    s.weight = std::exp(s.log_weight);
    least += std::exp(s.log_weight - s.drift);
  }
  for (Seen& s : seen) {
    s.most = std::min(1.0, std::exp(s.log_weight + s.drift) / least);
    result.logits = std::max(result.logits, s.error());
    result.values += s.most * s.lost;
    rounding = std::max(rounding, s.rounding);
    for (std::size_t i = 0; i < dim; ++i) out[i] += s.weight * double{s.value[i]};
  }
  // Sums over tokens in f32.
  const double summing = kWeightRound + 2.0 * static_cast<double>(seen.size() + 16) * kRound;
  std::vector<double> off(seen.size(), summing);
  result.weights =
      std::min(2.0 * std::tanh(result.logits / 2.0),
               weights_bound(seen, &Seen::coding, off) + weights_bound(seen, &Seen::drift, off)) +
      summing;
  double from_zero = 0.0, from_out = 0.0, largest = 0.0, each = 0.0;
  for (std::size_t k = 0; k < seen.size(); ++k) {
    const Seen& s = seen[k];
    double zero = 0.0, centred = 0.0;
    for (std::size_t i = 0; i < dim; ++i) {
      const double v = s.value[i];
      zero += v * v;
      centred += (v - out[i]) * (v - out[i]);
    }
    largest = std::max(largest, std::sqrt(zero));
    from_zero = std::max(from_zero, std::sqrt(zero) + s.lost);
    from_out = std::max(from_out, std::sqrt(centred) + s.lost);
    each += off[k] * (std::sqrt(centred) + s.lost);
  }
  result.output = std::min(result.weights * std::min(from_zero, from_out), each) + result.values +
                  summing * largest + rounding * std::sqrt(static_cast<double>(dim)) +
                  weight_rounding(seen);
  return result;
}

}  // namespace

Status certify(const LayerShape& layer, std::span<const TokenStore* const> stores,
               const Queries& queries, std::int32_t kv_head, TensorView<Certificate, 2> out) {
  std::vector<std::unique_ptr<StoreFacts>> all;
  for (const TokenStore* store : stores) {
    if (store->empty()) continue;
    KVSPAN_TRY(all.emplace_back(), store->facts(layer, kv_head));
  }
  const std::int32_t group = layer.query_heads / layer.kv_heads;
  const std::vector<float> zeros(static_cast<std::size_t>(layer.value_dim));
  for (std::size_t i = 0; i < queries.positions.size(); ++i) {
    for (std::int32_t h = kv_head * group; h < (kv_head + 1) * group; ++h) {
      std::vector<Seen> seen;
      for (const auto& facts : all) {
        facts->look(layer, queries.rows.row(i, h), queries.positions[i], seen);
      }
      if (layer.soft_cap > 0.0f) cap(layer.soft_cap, seen);
      const auto head = static_cast<std::size_t>(h);
      if (!layer.alibi.empty()) lower_by_distance(layer.alibi[head], queries.positions[i], seen);
      if (!layer.sinks.empty()) seen.push_back(sink_token(layer.sinks[head], zeros));
      out.row(i)[h] = seen.empty()
                          ? Certificate{}
                          : certificate_of(seen, static_cast<std::size_t>(layer.value_dim));
    }
  }
  return {};
}

}  // namespace kvspan
