// SPDX-License-Identifier: Apache-2.0
#include "method/bands/bands_unit.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/fail.h"
#include "cache/calibration/array_sizes.h"
#include "cache/rope.h"
#include "method/bands/band_steps.h"
#include "method/bands/bands_parts.h"
#include "method/calibrated/learned_code.h"
#include "method/calibrated/rotated_moment.h"

namespace kvspan::detail {
namespace {

// Of a sequence's own codes, which are saved with it: what a direction without any variance would
// leave without bound.
constexpr float kLeastSpread = 1e-12f;
// Of the largest variance: below it is what sums in f32 leave of numbers that cancel, in directions
// that no row has. Divided by its own spread, as gains do, that noise would drown all the rest.
constexpr double kNothing = 1e-12;

void centre(std::span<const float> mean, MatrixD& second) {
  for (std::size_t i = 0; i < mean.size(); ++i) {
    for (std::size_t j = 0; j < mean.size(); ++j) {
      second(i, j) -= double{mean[i]} * double{mean[j]};
    }
  }
}

void place(const MatrixD& block, double factor, std::size_t at, MatrixD& to) {
  for (std::size_t i = 0; i < block.rows(); ++i) {
    for (std::size_t j = 0; j < block.cols(); ++j) to(at + i, at + j) = factor * block(i, j);
  }
}

// The metric of `keys` numbers from `first_key` on and of `values` numbers from `first_value` on: its diagonal, and the
// blocks of heads of a side where they are more than that.
struct MetricParts {
  std::vector<float> weights;  // [D]
  std::vector<float> key_blocks, value_blocks;

  MetricParts(const MatrixD& metric, std::size_t first_key, std::size_t keys, std::size_t key_dim,
              std::size_t first_value, std::size_t values, std::size_t value_dim) {
    if (keys > 0) take(metric, first_key, first_key + keys, key_dim, key_blocks);
    if (values > 0) take(metric, first_value, first_value + values, value_dim, value_blocks);
  }

 private:
  void take(const MatrixD& metric, std::size_t first, std::size_t end, std::size_t dim,
            std::vector<float>& blocks) {
    bool diagonal = true;
    for (std::size_t i = first; i < end; ++i) {
      weights.push_back(static_cast<float>(metric(i, i)));
      const std::size_t head = first + (i - first) / dim * dim;
      for (std::size_t j = head; j < head + dim; ++j) {
        diagonal = diagonal && (i == j || metric(i, j) == 0.0);
        blocks.push_back(static_cast<float>(metric(i, j)));
      }
    }
    if (diagonal) blocks.clear();
  }
};

// A' = M B, the components in stored order, [D, stored]. M has a block for each head.
Matrix stored_analysis(const MatrixD& metric, const Matrix& synthesis, std::size_t key_width,
                       std::size_t key_dim, std::size_t value_dim, const BandsLayout& layout) {
  Matrix out(metric.rows(), layout.stored());
  std::vector<double> sum(layout.stored());
  for (std::size_t i = 0; i < metric.rows(); ++i) {
    const std::size_t side = i < key_width ? 0 : key_width;
    const std::size_t dim = i < key_width ? key_dim : value_dim;
    const std::size_t head = side + (i - side) / dim * dim;
    std::fill(sum.begin(), sum.end(), 0.0);
    for (std::size_t j = head; j < head + dim; ++j) {
      const double m = metric(i, j);
      if (m == 0.0) continue;
      const float* b = synthesis.row(j);
      for (std::size_t p = 0; p < sum.size(); ++p) sum[p] += m * double{b[layout.order()[p]]};
    }
    for (std::size_t p = 0; p < sum.size(); ++p) out(i, p) = static_cast<float>(sum[p]);
  }
  return out;
}

}  // namespace

bool BandsDesigner::balances() const {
  return options_.joint && options_.balanced && !has_layer_weights(calibration_);
}

std::size_t BandsDesigner::key_width(const BandsUnit& u) const {
  return u.keys ? u.layers.count * static_cast<std::size_t>(u.heads.count * layer(u).key_dim) : 0;
}

std::size_t BandsDesigner::value_width(const BandsUnit& u) const {
  return u.values ? u.layers.count * static_cast<std::size_t>(u.heads.count * layer(u).value_dim) : 0;
}

Domain BandsDesigner::domain() const {
  if (options_.before_rope) return Domain::kPreRopeKey;
  return options_.anchor > 0 ? Domain::kAnchoredKey : Domain::kPostRopeKey;
}

// Of the numbers of one layer of the unit, in the layer's z of all heads.
std::vector<std::size_t> BandsDesigner::places_of(const BandsUnit& u) const {
  const LayerShape& l = layer(u);
  const auto first = static_cast<std::size_t>(u.heads.first), all = static_cast<std::size_t>(l.kv_heads);
  const auto dk = static_cast<std::size_t>(l.key_dim), dv = static_cast<std::size_t>(l.value_dim);
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < layer_keys(u); ++i) places.push_back(first * dk + i);
  for (std::size_t i = 0; i < layer_values(u); ++i) places.push_back(all * dk + first * dv + i);
  return places;
}

void BandsDesigner::take_mean(BandsUnit& u, const UnitCalibration& learnt) const {
  const auto first = static_cast<std::ptrdiff_t>(u.heads.first);
  const auto take = [&](const std::vector<float>& mean, std::ptrdiff_t dim, std::size_t count) {
    const auto from = mean.begin() + first * dim;
    u.mean.insert(u.mean.end(), from, from + static_cast<std::ptrdiff_t>(count));
  };
  u.mean.clear();
  for (const auto& one : learnt) {
    if (u.keys) take(one->key_mean, layer(u).key_dim, layer_keys(u));
  }
  for (const auto& one : learnt) {
    if (u.values) take(one->value_mean, layer(u).value_dim, layer_values(u));
  }
}

// Covariance of z about its mean, in the domain.
MatrixD BandsDesigner::take_moment(BandsUnit& u, const UnitCalibration& learnt) const {
  const LayerShape& l = layer(u);
  if (domain() == Domain::kPostRopeKey && u.keys) {
    // After RoPE there is no joint moment with the values, nor with other layers; codes are apart.
    MatrixD second = moment_of(l, *learnt[0], Domain::kPostRopeKey, u.heads, 0).second;
    const float* mean = learnt[0]->rotated_key_mean.data() + u.heads.first * l.key_dim;
    u.mean.assign(mean, mean + key_width(u));
    centre(u.mean, second);
    return second;
  }
  take_mean(u, learnt);
  const std::vector<std::size_t> places = places_of(u);
  const std::size_t side = joint_width(l);
  const std::size_t nk = layer_keys(u), nv = layer_values(u), keys = key_width(u);
  // Number i of layer a in the unit's vector.
  const auto at = [&](std::size_t a, std::size_t i) { return i < nk ? a * nk + i : keys + a * nv + i - nk; };
  MatrixD second(keys + value_width(u), keys + value_width(u));
  for (std::size_t a = 0; a < u.layers.count; ++a) {
    for (std::size_t b = a; b < u.layers.count; ++b) {
      const std::vector<float>& moment = a == b ? learnt[a]->joint_moment : learnt[a]->cross_moments[b - a - 1];
      for (std::size_t i = 0; i < places.size(); ++i) {
        for (std::size_t j = 0; j < places.size(); ++j) {
          const double product = moment[places[i] * side + places[j]];
          second(at(a, i), at(b, j)) = second(at(b, j), at(a, i)) = product;
        }
      }
    }
  }
  centre(u.mean, second);
  if (u.keys && domain() == Domain::kAnchoredKey) {
    const auto heads = static_cast<std::int32_t>(u.layers.count) * u.heads.count;
    average_rotations(l.rope, heads, l.key_dim, anchored_offsets(options_.anchor), second);
  }
  return second;
}

// blockdiag(alpha M_k, M_v) of the unit's sides; measured weights take alpha's place.
MatrixD BandsDesigner::metric_of(const BandsUnit& u, const UnitCalibration& learnt,
                                 double alpha) const {
  const std::size_t nk = key_width(u), nv = value_width(u);
  MatrixD metric(nk + nv, nk + nv);
  if (!options_.query_metric) {
    for (std::size_t i = 0; i < nk + nv; ++i)
      metric(i, i) = options_.balanced && i < nk ? alpha : 1.0;
    return metric;
  }
  for (std::size_t i = 0; i < u.layers.count; ++i) place_metric(u, i, *learnt[i], alpha, metric);
  return metric;
}

// That of one layer of the unit.
void BandsDesigner::place_metric(const BandsUnit& u, std::size_t index, const LayerCalibration& learnt, double alpha,
                                 MatrixD& to) const {
  const bool measured = has_layer_weights(calibration_);
  const LayerCalibration& weights = calibration_.layers[u.layers.first + index];
  if (u.keys) {
    place(ridged(by_heads(layer(u), learnt.key_metric, domain(), u.heads)),
          measured ? double{weights.key_weight} : alpha, index * layer_keys(u), to);
  }
  if (u.values) {
    place(ridged(by_heads(layer(u), learnt.value_metric, Domain::kValue, u.heads)),
          measured ? double{weights.value_weight} : 1.0, key_width(u) + index * layer_values(u), to);
  }
}

Status BandsDesigner::analyse(BandsUnit& u, const UnitCalibration& learnt, double alpha,
                              bool directions) const {
  const MatrixD second = take_moment(u, learnt);
  KVSPAN_TRY(Transform transform, leading_transform(second, metric_of(u, learnt, alpha)));
  u.power = std::move(transform.power);
  const double least = kNothing * *std::max_element(u.power.begin(), u.power.end());
  for (double& power : u.power) power = power > least ? power : 0.0;
  if (directions) u.synthesis = std::move(transform.synthesis);
  return {};
}

Status BandsDesigner::finish(BandsUnit& u, const UnitCalibration& learnt, double alpha,
                             const std::shared_ptr<Ledger>& ledger) const {
  const std::size_t d = u.power.size(), nk = key_width(u);
  const auto dk = static_cast<std::size_t>(layer(u).key_dim);
  const auto dv = static_cast<std::size_t>(layer(u).value_dim);
  BandsParts parts = bands_parts(layer(u), u.heads.count, u.keys, u.values, options_);
  parts.components = static_cast<std::int32_t>(d);
  const MatrixD metric = metric_of(u, learnt, alpha);
  Matrix synthesis = std::move(u.synthesis);
  parts.bits = u.bits;
  std::vector<float> sigma(d), steps(d, 1.0f);
  for (std::size_t i = 0; i < d; ++i) {
    sigma[i] = static_cast<float>(std::sqrt(u.power[i]));
    if (options_.own && sigma[i] > 0.0f) sigma[i] = std::max(sigma[i], kLeastSpread);
  }
  parts.sigma = sigma;
  KVSPAN_TRY(const BandsLayout layout, BandsLayout::create(u.bits, options_.quantizer));
  // Directions without variance that fill the last quad must not add anything to what is read.
  for (std::size_t i = 0; i < d; ++i) {
    if (u.power[i] > 0.0) continue;
    for (std::size_t j = 0; j < d; ++j) synthesis(j, i) = 0.0f;
  }
  const Matrix c = sample_coefficients(
      u, learnt, stored_analysis(metric, synthesis, nk, dk, dv, layout), layout, sigma);
  const std::vector<float> fitted = fit_band_steps(c, layout);
  for (std::size_t p = 0; p < fitted.size(); ++p) steps[layout.order()[p]] = fitted[p];
  parts.steps = steps;
  for (std::size_t i = 0; i < u.layers.count; ++i) {
    KVSPAN_TRY(auto code, code_of(u, i, parts, metric, synthesis, ledger));
    u.codes.push_back(std::move(code));
  }
  return {};
}

// The code of one layer of the unit: its rows of B and its blocks of the metric.
Result<std::shared_ptr<const BandsCode>> BandsDesigner::code_of(const BandsUnit& u, std::size_t index,
                                                                BandsParts parts, const MatrixD& metric,
                                                                const Matrix& synthesis,
                                                                const std::shared_ptr<Ledger>& ledger) const {
  const std::size_t nk = layer_keys(u), nv = layer_values(u);
  const std::size_t first_key = index * nk, first_value = key_width(u) + index * nv;
  const MetricParts held(metric, first_key, nk, static_cast<std::size_t>(layer(u).key_dim), first_value, nv,
                         static_cast<std::size_t>(layer(u).value_dim));
  parts.weights = held.weights;
  parts.key_blocks = held.key_blocks;
  parts.value_blocks = held.value_blocks;
  parts.key_mean = std::span(u.mean).subspan(first_key, nk);
  parts.value_mean = std::span(u.mean).subspan(first_value, nv);
  Matrix rows(nk + nv, synthesis.cols());
  for (std::size_t i = 0; i < nk + nv; ++i) {
    const float* from = synthesis.row(i < nk ? first_key + i : first_value + i - nk);
    std::copy_n(from, synthesis.cols(), rows.row(i));
  }
  parts.synthesis = rows.view();
  return BandsCode::create(parts, ledger, options_.own ? MemoryKind::kBases : MemoryKind::kShared);
}

// c / g of the sample rows, [samples, stored], in stored order; analysis [D, stored].
Matrix BandsDesigner::sample_coefficients(const BandsUnit& u, const UnitCalibration& learnt,
                                          const Matrix& analysis, const BandsLayout& layout,
                                          const std::vector<float>& sigma) const {
  const LayerShape& l = layer(u);
  const auto dk = static_cast<std::size_t>(l.key_dim);
  const std::size_t side = joint_width(l);
  const std::size_t samples = calibration_.sample_positions.size();
  const std::vector<std::size_t> places = places_of(u);
  const std::size_t nk = layer_keys(u), nv = layer_values(u), keys = key_width(u);
  Matrix out(samples, layout.stored());
  std::vector<float> z(keys + value_width(u));
  for (std::size_t s = 0; s < samples; ++s) {
    const std::int32_t position = calibration_.sample_positions[s];
    for (std::size_t a = 0; a < u.layers.count; ++a) {
      const float* row = learnt[a]->sample_rows.data() + s * side;
      for (std::size_t i = 0; i < nk; ++i) z[a * nk + i] = row[places[i]];
      for (std::size_t i = 0; i < nv; ++i) z[keys + a * nv + i] = row[places[nk + i]];
    }
    const std::int32_t n = options_.anchor;
    if (domain() == Domain::kPostRopeKey) {
      for (std::size_t h = 0; h * dk < keys; ++h) rope_rotate(l.rope, position, z.data() + h * dk);
    }
    for (std::size_t i = 0; i < z.size(); ++i) z[i] -= u.mean[i];
    if (n > 0) {
      const std::int32_t offset = position % n - n / 2;
      for (std::size_t h = 0; h * dk < keys; ++h) rope_offset(l.rope, offset, z.data() + h * dk);
    }
    float* const c = out.row(s);
    for (std::size_t j = 0; j < z.size(); ++j) {
      const float* a = analysis.row(j);
      for (std::size_t p = 0; p < layout.stored(); ++p) c[p] += z[j] * a[p];
    }
    double square = 0.0;
    for (std::size_t p = 0; p < layout.stored(); ++p) {
      const double sigma_p = sigma[layout.order()[p]];
      if (sigma_p > 0.0) square += double{c[p]} * double{c[p]} / (sigma_p * sigma_p);
    }
    if (!options_.gain) continue;
    const float gain = log_gain(log_gain_code(
        static_cast<float>(std::sqrt(square / static_cast<double>(layout.stored())))));
    for (std::size_t p = 0; p < layout.stored(); ++p) out(s, p) /= gain;
  }
  return out;
}

}  // namespace kvspan::detail
