// SPDX-License-Identifier: Apache-2.0
#include "api/attention_metrics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "attention/kernels/kernels.h"
#include "attention/score_bias.h"
#include "cache/visible.h"

namespace kvspan {
namespace {

constexpr std::int64_t kStride = 7;  // odd, so that queries at every offset of a block are read
constexpr std::int32_t kYoung = 128;  // tokens before a query that recipes keep exact; a quarter where it sees few
constexpr double kLeastShare = 0.05;
constexpr float kLog2e = 1.4426950408889634f;

std::size_t at(std::int32_t n) {
  return static_cast<std::size_t>(n);
}

std::int32_t rounded_up(std::int32_t n, std::int32_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

// [heads][dim * dim]; no head counts less than its share.
std::vector<float> floored(std::vector<double> metrics, std::size_t dim) {
  const std::size_t size = dim * dim, heads = metrics.size() / size;
  std::vector<double> traces(heads);
  for (std::size_t h = 0; h < heads; ++h) {
    for (std::size_t i = 0; i < dim; ++i) traces[h] += metrics[h * size + i * dim + i];
  }
  const double least = kLeastShare * std::accumulate(traces.begin(), traces.end(), 0.0) / static_cast<double>(heads);
  for (std::size_t h = 0; h < heads; ++h) {
    if (traces[h] >= least) continue;
    for (std::size_t i = 0; i < size; ++i) {
      // A head without any weight at all has no direction either.
      double& x = metrics[h * size + i];
      x = traces[h] > 0.0 ? x * least / traces[h] : i % (dim + 1) == 0 ? least / static_cast<double>(dim) : 0.0;
    }
  }
  return std::vector<float>(metrics.begin(), metrics.end());
}

}  // namespace

AttentionMetrics::AttentionMetrics(const LayerShape& shape, std::int32_t window, std::int32_t skip, std::int32_t block)
    : shape_(shape),
      window_(window),
      skip_(skip),
      keys_(shape.kv_heads, shape.key_dim, window, Element::kF32, nullptr),
      values_(shape.kv_heads, shape.value_dim, window, Element::kF32, nullptr),
      energies_(at(shape.query_heads) * at(window)),
      readings_((at(block) / kStride + 1) * at(shape.query_heads)),
      moved_(at(block) / kStride + 1, at(shape.query_heads) * detail::padded(at(shape.key_dim))),
      squares_(at(shape.query_heads)) {
  for (std::int32_t head = 0; head < shape.kv_heads; ++head) queries_.emplace_back(at(shape.key_dim));
}

double AttentionMetrics::product(std::size_t query_head, const float* v, const float* w) const noexcept {
  const std::size_t dim = at(shape_.value_dim);
  if (products_.empty()) return std::inner_product(v, v + dim, w, 0.0);
  const float* matrix = products_.data() + query_head * dim * dim;
  double sum = 0.0;
  for (std::size_t i = 0; i < dim; ++i) {
    float row[8] = {};  // partial sums, which a vector holds
    const float* m = matrix + i * dim;
    std::size_t j = 0;
    for (; j + 8 <= dim; j += 8) {
      for (std::size_t k = 0; k < 8; ++k) row[k] += m[j + k] * w[j + k];
    }
    for (; j < dim; ++j) row[0] += m[j] * w[j];
    sum += double{v[i]} * std::accumulate(std::begin(row), std::end(row), 0.0f);
  }
  return sum;
}

void AttentionMetrics::add_rows(const KvRows& rows, Team& team) {
  const std::size_t n = rows.positions.size();
  if (team.leader() && n > 0) {
    if (!positions_.empty() && rows.positions[0] <= positions_.back()) positions_.clear();
    for (std::size_t i = 0; i < n && std::cmp_less(positions_.size(), window_); ++i) positions_.push_back(rows.positions[i]);
  }
  team.barrier();
  const auto held = static_cast<std::int32_t>(positions_.size());
  const std::int32_t first = n == 0 ? held : static_cast<std::int32_t>(
      std::lower_bound(positions_.begin(), positions_.end(), rows.positions[0]) - positions_.begin());
  for (std::int32_t i; (i = team.take()) < held - first;) {
    for (std::int32_t head = 0; head < shape_.kv_heads; ++head) {
      const float* value = rows.values.row(at(i), at(head));
      keys_.write(head, first + i, rows.keys.row(at(i), at(head)));
      values_.write(head, first + i, value);
      for (std::size_t g = at(head) * group(); g < (at(head) + 1) * group(); ++g) {
        energies_[g * at(window_) + at(first + i)] = static_cast<float>(product(g, value, value));
      }
    }
  }
  team.barrier();
}

AttentionMetrics::Sight AttentionMetrics::sight_at(std::int32_t position) const noexcept {
  const auto place = [&](std::int32_t of) {
    return static_cast<std::int32_t>(std::lower_bound(positions_.begin(), positions_.end(), of) - positions_.begin());
  };
  const std::int32_t first = place(first_seen(shape_, position)), n = place(position + 1) - first;
  const std::int32_t young = std::min(kYoung, n / 4);
  return {first, n, std::max(first, place(skip_)) - first, place(position - young + 1) - first};
}

AttentionMetrics::Weights AttentionMetrics::weigh(const Queries& queries, std::size_t row, std::size_t head,
                                                  const Sight& seen) const {
  const AttentionKernels& kernels = attention_kernels(cpu_level());
  const std::int32_t dim = keys_.head(0).stride;
  const float cap = shape_.soft_cap, scale = shape_.logit_scale * (cap > 0.0f ? 2.0f * kLog2e / cap : kLog2e);
  std::vector<float> q(group() * at(dim));
  for (std::size_t g = 0; g < group(); ++g) {
    const float* from = queries.rows.row(row, head * group() + g);
    for (std::int32_t i = 0; i < shape_.key_dim; ++i) q[g * at(dim) + at(i)] = scale * from[i];
  }
  Weights to{rounded_up(seen.n, kScoreMultiple), {}, {}};
  to.p.resize(group() * at(to.stride));
  kernels.score_rows(q.data(), static_cast<std::int32_t>(group()), dim,
                     keys_.head(static_cast<std::int32_t>(head)).from(seen.first), seen.n, nullptr, to.p.data(), to.stride);
  for (std::size_t g = 0; g < group(); ++g) {
    float* p = to.p.data() + g * at(to.stride);
    const std::size_t query_head = head * group() + g;
    if (cap > 0.0f) {
      kernels.cap(p, seen.n, cap);
      for (std::int32_t j = 0; j < seen.n; ++j) {
        const float bent = p[j] / (kLog2e * cap), slope = 1.0f - bent * bent;
        to.squared_slopes.push_back(slope * slope);
      }
    }
    if (!shape_.alibi.empty()) {
      add_alibi(p, 1, seen.n, alibi_slope(shape_, static_cast<std::int32_t>(query_head)), queries.positions[row],
                [&](std::int32_t j) { return positions_[at(seen.first + j)]; });
    }
    float most = -std::numeric_limits<float>::infinity();
    double sum = double{kernels.soften_row(p, seen.n, &most)};
    if (!shape_.sinks.empty()) sum += std::exp2(double{kLog2e * shape_.sinks[query_head]} - double{most});
    for (std::int32_t j = 0; j < seen.n; ++j) p[j] = static_cast<float>(p[j] / sum);
  }
  return to;
}

void AttentionMetrics::read_head(const Queries& queries, std::size_t row, std::size_t head, Reading* to) const {
  std::fill_n(to, group(), Reading());
  const Sight seen = sight_at(queries.positions[row]);
  if (seen.old >= seen.old_end) return;
  Weights weights = weigh(queries, row, head, seen);
  const RowsView values = values_.head(static_cast<std::int32_t>(head)).from(seen.first);
  const auto sum_values = [&] {
    std::vector<float> sums(group() * at(values.stride));
    attention_kernels(cpu_level()).weigh_rows(weights.p.data(), weights.stride, static_cast<std::int32_t>(group()), values,
                                              values.stride, seen.n, nullptr, sums.data());
    return sums;
  };
  const std::vector<float> out = sum_values();
  for (std::size_t g = 0; g < group(); ++g) {
    float* p = weights.p.data() + g * at(weights.stride);
    const float* energies = energies_.data() + (head * group() + g) * at(window_) + at(seen.first);
    for (std::int32_t j = 0; j < seen.n; ++j) {
      const float square = j < seen.old || j >= seen.old_end ? 0.0f : p[j] * p[j];
      to[g].square += square;
      p[j] = weights.squared_slopes.empty() ? square : square * weights.squared_slopes[g * at(seen.n) + at(j)];
      to[g].movement += p[j] * energies[j];
    }
  }
  // sum_j w_j |v_j - o|^2, of which sum_j w_j |v_j|^2 is there.
  const std::vector<float> moved = sum_values();
  for (std::size_t g = 0; g < group(); ++g) {
    const float* p = weights.p.data() + g * at(weights.stride);
    const float *o = out.data() + g * at(values.stride), *m = moved.data() + g * at(values.stride);
    const std::size_t query_head = head * group() + g;
    to[g].movement += std::accumulate(p, p + seen.n, 0.0) * product(query_head, o, o) - 2.0 * product(query_head, o, m);
    to[g].movement = std::max(0.0, to[g].movement);
  }
}

void AttentionMetrics::add_queries(const Queries& queries, std::int64_t counted, Team& team) {
  const std::size_t query_heads = at(shape_.query_heads), heads = queries_.size(), dim = at(shape_.key_dim);
  const auto skipped = static_cast<std::size_t>(
      std::lower_bound(queries.positions.begin(), queries.positions.end(), skip_) - queries.positions.begin());
  const auto before = static_cast<std::size_t>((kStride - counted % kStride) % kStride);
  const std::size_t first = skipped + before, n = queries.positions.size();
  const std::size_t sampled = first < n ? (n - first + kStride - 1) / kStride : 0;
  for (std::size_t item; (item = at(team.take())) < sampled * heads;) {
    const std::size_t i = item / heads, head = item % heads, row = first + i * kStride;
    Reading* readings = readings_.data() + i * query_heads + head * group();
    read_head(queries, row, head, readings);
    for (std::size_t g = 0; g < group(); ++g) {
      const double factor = double{shape_.logit_scale} * std::sqrt(readings[g].movement);
      const std::size_t query_head = head * group() + g;
      double* to = moved_.row(i) + query_head * detail::padded(dim);
      const float* from = queries.rows.row(row, query_head);
      for (std::size_t j = 0; j < dim; ++j) to[j] = factor * from[j];
    }
  }
  team.barrier();
  const std::size_t strips = queries_.front().strips();
  for (std::size_t item; (item = at(team.take())) < heads * strips;) {
    const std::size_t head = item / strips;
    for (std::size_t g = head * group(); g < (head + 1) * group(); ++g) {
      queries_[head].add(item % strips, moved_, g * detail::padded(dim), 0, sampled);
    }
  }
  if (team.leader()) {
    for (std::size_t i = 0; i < sampled * query_heads; ++i) squares_[i % query_heads] += readings_[i].square;
    read_ += static_cast<std::int64_t>(sampled);
  }
  team.barrier();
}

bool AttentionMetrics::empty() const noexcept {
  return std::ranges::all_of(squares_, [](double square) { return square == 0.0; });
}

std::vector<float> AttentionMetrics::key_metric(double factor) const {
  std::vector<double> all;
  for (const MomentSum& head : queries_) {
    for (const float x : head.moment(static_cast<double>(read_))) all.push_back(factor * double{x});
  }
  return floored(std::move(all), at(shape_.key_dim));
}

std::vector<double> AttentionMetrics::weighted_products(std::span<const double> weights) const {
  const std::size_t dim = at(shape_.value_dim), size = dim * dim;
  std::vector<double> all(queries_.size() * size);
  for (std::size_t g = 0; g < weights.size(); ++g) {
    double* to = all.data() + g / group() * size;
    for (std::size_t i = 0; i < size; ++i) {
      to[i] += weights[g] * (products_.empty() ? (i % (dim + 1) == 0 ? 1.0 : 0.0) : double{products_[g * size + i]});
    }
  }
  return all;
}

std::vector<float> AttentionMetrics::output_metric(double factor) const {
  const std::vector<double> same(squares_.size(), factor / static_cast<double>(group()));
  const std::vector<double> metric = weighted_products(same);
  return std::vector<float>(metric.begin(), metric.end());
}

std::vector<float> AttentionMetrics::value_metric(double factor) const {
  std::vector<double> weights = squares_;
  for (double& weight : weights) weight *= factor / static_cast<double>(read_);
  return floored(weighted_products(weights), at(shape_.value_dim));
}

}  // namespace kvspan
