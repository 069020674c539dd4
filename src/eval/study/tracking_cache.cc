// SPDX-License-Identifier: Apache-2.0
#include "eval/study/tracking_cache.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <new>
#include <numeric>
#include <utility>

#include "base/expect.h"
#include "base/fail.h"
#include "base/half.h"
#include "cache/layer_part.h"
#include "cache/visible.h"
#include "method/policies/fd_policy.h"

namespace kvspan {
namespace {

constexpr std::size_t kTop = 10;

std::size_t at(std::int32_t n) {
  return static_cast<std::size_t>(n);
}

// One query over the tokens it sees: logits and softmax, -infinity and 0 for tokens not read.
struct Weighed {
  std::vector<double> logits, weights;
};

// Of a query head; distance: from the token to the query.
double logit_of(const LayerShape& shape, std::size_t head, const float* query, const float* key,
                std::int32_t distance) {
  double sum = 0.0;
  for (std::size_t i = 0; i < at(shape.key_dim); ++i) sum += double{query[i]} * double{key[i]};
  sum *= double{shape.logit_scale};
  if (shape.soft_cap > 0.0f) sum = shape.soft_cap * std::tanh(sum / shape.soft_cap);
  return shape.alibi.empty() ? sum : sum - double{shape.alibi[head]} * distance;
}

void weigh(const LayerShape& shape, std::size_t head, Weighed& w) {
  double most = *std::max_element(w.logits.begin(), w.logits.end()), sum = 0.0;
  if (!shape.sinks.empty()) {
    most = std::max(most, double{shape.sinks[head]});
    sum = std::exp(shape.sinks[head] - most);
  }
  w.weights.clear();
  for (const double logit : w.logits) {
    w.weights.push_back(std::exp(logit - most));
    sum += w.weights.back();
  }
  for (double& weight : w.weights) weight /= sum;
}

double correlation(const std::vector<double>& a, const std::vector<double>& b) {
  const auto n = static_cast<double>(a.size());
  const double mean_a = std::accumulate(a.begin(), a.end(), 0.0) / n;
  const double mean_b = std::accumulate(b.begin(), b.end(), 0.0) / n;
  double ab = 0.0, aa = 0.0, bb = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    ab += (a[i] - mean_a) * (b[i] - mean_b);
    aa += (a[i] - mean_a) * (a[i] - mean_a);
    bb += (b[i] - mean_b) * (b[i] - mean_b);
  }
  // Weights that do not vary have no correlation; equal ones count as perfect.
  if (aa == 0.0 || bb == 0.0) return a == b ? 1.0 : 0.0;
  return ab / std::sqrt(aa * bb);
}

std::vector<std::size_t> top(const std::vector<double>& weights) {
  std::vector<std::size_t> order(weights.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const std::size_t count = std::min(kTop, order.size());
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count), order.end(),
                    [&](std::size_t a, std::size_t b) {
                      return weights[a] != weights[b] ? weights[a] > weights[b] : a < b;
                    });
  order.resize(count);
  std::sort(order.begin(), order.end());
  return order;
}

double overlap(const std::vector<double>& a, const std::vector<double>& b) {
  const std::vector<std::size_t> of_a = top(a), of_b = top(b);
  std::vector<std::size_t> both;
  std::set_intersection(of_a.begin(), of_a.end(), of_b.begin(), of_b.end(),
                        std::back_inserter(both));
  return static_cast<double>(both.size()) / static_cast<double>(of_a.size());
}

std::optional<Certificate> larger(const Certificate& a, const std::optional<Certificate>& b) {
  if (!b) return std::nullopt;
  return Certificate{std::max(a.logits, b->logits), std::max(a.weights, b->weights),
                     std::max(a.values, b->values), std::max(a.output, b->output)};
}

// The largest certificates of one query's heads; nothing where no residuals are kept.
std::optional<Certificate> certified(const LayerShape& part,
                                     std::span<const TokenStore* const> stores,
                                     const Queries& query) {
  std::vector<Certificate> all(query.rows.shape[1]);
  for (std::int32_t h = 0; h < part.kv_heads; ++h) {
    if (!certify(part, stores, query, h, {all.data(), {1, all.size()}})) return std::nullopt;
  }
  Certificate most;
  for (const Certificate& one : all) most = *larger(most, one);
  return most;
}

}  // namespace

TrackingCache::TrackingCache(std::unique_ptr<MethodCache> inner, Report report)
    : WrappedCache(std::move(inner)),
      report_(std::move(report)),
      rounded_(method().group(0, 0).options().ends == Element::kF16),
      layers_(shape().layers.size()) {}

Result<std::unique_ptr<TrackingCache>> TrackingCache::create(std::unique_ptr<KvCache> inner,
                                                             Report report) {
  KVSPAN_EXPECT(inner->tokens() == 0, "an empty cache");
  if (dynamic_cast<MethodCache*>(inner.get()) == nullptr) {
    return fail(ErrorCode::kUnsupported, "the errors of {} cannot be tracked", inner->recipe());
  }
  std::unique_ptr<MethodCache> method(static_cast<MethodCache*>(inner.release()));
  return std::unique_ptr<TrackingCache>(new TrackingCache(std::move(method), std::move(report)));
}

void TrackingCache::keep(const LayerShape& shape, const KvRows& rows, Rows& to) const {
  const auto add = [&](const TensorView<const float, 3>& from, std::int32_t dim,
                       std::vector<float>& out) {
    // A step that failed may have left rows behind.
    out.resize(at(rows.positions.front()) * at(shape.kv_heads) * at(dim));
    for (std::size_t i = 0; i < rows.positions.size(); ++i) {
      for (std::size_t h = 0; h < at(shape.kv_heads); ++h) {
        const float* row = from.row(i, h);
        for (std::size_t j = 0; j < at(dim); ++j) {
          out.push_back(rounded_ ? to_float(to_half(row[j])) : row[j]);
        }
      }
    }
  };
  add(rows.keys, shape.key_dim, to.keys);
  add(rows.values, shape.value_dim, to.values);
}

Status TrackingCache::append(int layer, const KvRows& rows, Team& team) {
  if (team.leader()) {
    outcome_ = {};
    try {
      keep(shape().layers[static_cast<std::size_t>(layer)], rows,
           layers_[static_cast<std::size_t>(layer)]);
    } catch (const std::bad_alloc&) {
      outcome_ = fail(ErrorCode::kOutOfBudget, "no memory to track {} tokens", tokens());
    }
  }
  team.barrier();
  const Status kept = outcome_;
  KVSPAN_CHECK_OK(inner().append(layer, rows, team));
  return kept;
}

Status TrackingCache::attend(int layer, const Queries& queries, TensorView<float, 3> out,
                             AttentionScratch& scratch, Team& team) {
  const Status attended = inner().attend(layer, queries, out, scratch, team);
  if (team.leader()) {
    outcome_ = {};
    try {
      if (attended) report_(measure(layer, queries, out));
    } catch (const std::bad_alloc&) {
      outcome_ = fail(ErrorCode::kOutOfBudget, "no memory to track {} tokens", tokens());
    }
  }
  team.barrier();
  KVSPAN_CHECK_OK(attended);
  return outcome_;
}

void TrackingCache::measure_head(const LayerShape& shape, const Rows& rows, const float* query,
                                 std::size_t head, const RowBlock& rebuilt, std::int32_t in_group,
                                 const float* out, TrackedStep& step) const {
  const std::size_t kv_head = head / at(shape.query_heads / shape.kv_heads);
  const auto heads = at(shape.kv_heads), dk = at(shape.key_dim), dv = at(shape.value_dim);
  const std::int32_t first = step.position - step.tokens + 1;
  Weighed exact, coded;
  for (std::size_t t = 0; t < at(step.tokens); ++t) {
    const float* key = rows.keys.data() + ((at(first) + t) * heads + kv_head) * dk;
    exact.logits.push_back(
        logit_of(shape, head, query, key, step.tokens - 1 - static_cast<std::int32_t>(t)));
  }
  coded.logits.assign(at(step.tokens), -std::numeric_limits<double>::infinity());
  std::int32_t read = 0;
  for (std::size_t t = 0; t < rebuilt.positions.size(); ++t) {
    if (rebuilt.positions[t] < first || rebuilt.positions[t] > step.position) continue;
    const std::size_t index = at(rebuilt.positions[t] - first);
    coded.logits[index] = logit_of(shape, head, query, rebuilt.keys_of(in_group).row(t),
                                   step.position - rebuilt.positions[t]);
    step.logit_error =
        std::max(step.logit_error, std::abs(coded.logits[index] - exact.logits[index]));
    ++read;
  }
  step.read = std::min(step.read, read);
  weigh(shape, head, exact);
  weigh(shape, head, coded);
  step.correlation += correlation(exact.weights, coded.weights);
  step.top10_overlap += overlap(exact.weights, coded.weights);
  double error = 0.0, size = 0.0;
  for (std::size_t j = 0; j < dv; ++j) {
    double sum = 0.0;
    for (std::size_t t = 0; t < at(step.tokens); ++t) {
      sum += exact.weights[t] * double{rows.values[((at(first) + t) * heads + kv_head) * dv + j]};
    }
    error += std::pow(double{out[j]} - sum, 2.0);
    size += sum * sum;
  }
  if (std::sqrt(error) >= step.output_error) {
    step.output_error = std::sqrt(error);
    step.output_norm = std::sqrt(size);
  }
}

TrackedStep TrackingCache::measure(int layer, const Queries& queries,
                                   const TensorView<float, 3>& out) const {
  const LayerShape& shape = inner().shape().layers[static_cast<std::size_t>(layer)];
  const auto per_head = at(shape.query_heads / shape.kv_heads);
  const std::size_t last = queries.positions.size() - 1;
  TrackedStep step;
  step.layer = layer;
  step.position = queries.positions[last];
  step.tokens = step.position - first_seen(shape, step.position) + 1;
  step.read = step.tokens;
  step.bound = Certificate{};
  for (std::size_t g = 0; g < method().groups(layer); ++g) {
    const GroupOptions& options = method().group(layer, g).options();
    const std::vector<const TokenStore*> stores = method().last_read(layer, g);
    RowBlock rebuilt{.heads = options.heads,
                     .key_dim = shape.key_dim,
                     .value_dim = shape.value_dim,
                     .keys = {},
                     .values = {},
                     .positions = {}};
    for (const TokenStore* store : stores) store->read(0, step.position + 1, rebuilt);
    Queries part = queries;
    part.positions = queries.positions.last(1);
    part.rows.data = queries.rows.row(last, at(options.first_head) * per_head);
    part.rows.shape[0] = 1;
    part.rows.shape[1] = at(options.heads) * per_head;
    for (std::size_t h = 0; h < part.rows.shape[1]; ++h) {
      const auto in_group = static_cast<std::int32_t>(h / per_head);
      measure_head(shape, layers_[static_cast<std::size_t>(layer)], part.rows.row(0, h),
                   at(options.first_head) * per_head + h, rebuilt, in_group,
                   out.row(last, at(options.first_head) * per_head + h), step);
    }
    if (step.bound) {
      step.bound =
          larger(*step.bound,
                 certified(layer_part(shape, options.first_head, options.heads), stores, part));
    }
    if (const auto* fd = dynamic_cast<const FdPolicy*>(method().policy(layer, g))) {
      if (fd->keys()) step.key_delta = std::max(step.key_delta.value_or(0.0), fd->keys()->delta());
      if (fd->values()) {
        step.value_delta = std::max(step.value_delta.value_or(0.0), fd->values()->delta());
      }
    }
  }
  // The bounds speak of coding; where tokens are missing they say nothing.
  if (step.read < step.tokens) step.bound.reset();
  step.correlation /= static_cast<double>(shape.query_heads);
  step.top10_overlap /= static_cast<double>(shape.query_heads);
  return step;
}

Status TrackingCache::truncate(std::int32_t n) {
  KVSPAN_CHECK_OK(inner().truncate(n));
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const LayerShape& l = shape().layers[i];
    const std::size_t rows = at(std::max(n, 0)) * at(l.kv_heads);
    layers_[i].keys.resize(std::min(layers_[i].keys.size(), rows * at(l.key_dim)));
    layers_[i].values.resize(std::min(layers_[i].values.size(), rows * at(l.value_dim)));
  }
  return {};
}

void TrackingCache::clear() {
  inner().clear();
  for (Rows& rows : layers_) rows = {};
}

Result<std::unique_ptr<KvCache>> TrackingCache::fork() const {
  return fail(ErrorCode::kUnsupported, "a cache whose errors are tracked cannot be forked");
}

}  // namespace kvspan
