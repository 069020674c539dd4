// SPDX-License-Identifier: Apache-2.0
#include "method/bands/bands_unit.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/fail.h"
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

// A metric's diagonal, and the blocks of heads of a side where they are more than that.
struct MetricParts {
  std::vector<float> weights;  // [D]
  std::vector<float> key_blocks, value_blocks;

  MetricParts(const MatrixD& metric, std::size_t key_width, std::size_t key_dim,
              std::size_t value_dim) {
    for (std::size_t i = 0; i < metric.rows(); ++i) {
      weights.push_back(static_cast<float>(metric(i, i)));
    }
    if (key_width > 0) take(metric, 0, key_width, key_dim, key_blocks);
    if (key_width < metric.rows()) take(metric, key_width, metric.rows(), value_dim, value_blocks);
  }

 private:
  static void take(const MatrixD& metric, std::size_t first, std::size_t end, std::size_t dim,
                   std::vector<float>& blocks) {
    bool diagonal = true;
    for (std::size_t i = first; i < end; ++i) {
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
  return options_.joint && options_.balanced &&
         !(options_.query_metric && has_layer_weights(calibration_));
}

std::size_t BandsDesigner::key_width(const BandsUnit& u) const {
  return u.keys ? static_cast<std::size_t>(u.heads.count * layer(u).key_dim) : 0;
}

std::size_t BandsDesigner::value_width(const BandsUnit& u) const {
  return u.values ? static_cast<std::size_t>(u.heads.count * layer(u).value_dim) : 0;
}

Domain BandsDesigner::domain() const {
  if (options_.before_rope) return Domain::kPreRopeKey;
  return options_.anchor > 0 ? Domain::kAnchoredKey : Domain::kPostRopeKey;
}

// Covariance of z about its mean, in the domain.
MatrixD BandsDesigner::take_moment(BandsUnit& u, const LayerCalibration& learnt) const {
  const LayerShape& l = layer(u);
  const auto first = static_cast<std::size_t>(u.heads.first);
  const auto dk = static_cast<std::size_t>(l.key_dim), dv = static_cast<std::size_t>(l.value_dim);
  if (domain() == Domain::kPostRopeKey && u.keys) {
    // After RoPE there is no joint moment with the values; codes are apart.
    MatrixD second = moment_of(l, learnt, Domain::kPostRopeKey, u.heads, 0).second;
    const float* mean = learnt.rotated_key_mean.data() + first * dk;
    u.mean.assign(mean, mean + key_width(u));
    centre(u.mean, second);
    return second;
  }
  const auto all = static_cast<std::size_t>(l.kv_heads);
  const std::size_t side = all * (dk + dv);
  std::vector<std::size_t> places;
  u.mean.clear();
  for (std::size_t i = 0; i < key_width(u); ++i) {
    places.push_back(first * dk + i);
    u.mean.push_back(learnt.key_mean[first * dk + i]);
  }
  for (std::size_t i = 0; i < value_width(u); ++i) {
    places.push_back(all * dk + first * dv + i);
    u.mean.push_back(learnt.value_mean[first * dv + i]);
  }
  MatrixD second(places.size(), places.size());
  for (std::size_t i = 0; i < places.size(); ++i) {
    for (std::size_t j = 0; j < places.size(); ++j) {
      second(i, j) = learnt.joint_moment[places[i] * side + places[j]];
    }
  }
  centre(u.mean, second);
  if (u.keys && domain() == Domain::kAnchoredKey) {
    average_rotations(l.rope, u.heads.count, l.key_dim, anchored_offsets(options_.anchor), second);
  }
  return second;
}

// blockdiag(alpha M_k, M_v) of the unit's sides; measured weights take alpha's place.
MatrixD BandsDesigner::metric_of(const BandsUnit& u, const LayerCalibration& learnt,
                                 double alpha) const {
  const std::size_t nk = key_width(u), nv = value_width(u);
  MatrixD metric(nk + nv, nk + nv);
  const bool measured = has_layer_weights(calibration_);
  const LayerCalibration& weights = calibration_.layers[u.layer];
  const double key_factor = measured ? double{weights.key_weight} : alpha;
  const double value_factor = measured ? double{weights.value_weight} : 1.0;
  if (!options_.query_metric) {
    for (std::size_t i = 0; i < nk + nv; ++i)
      metric(i, i) = options_.balanced && i < nk ? alpha : 1.0;
    return metric;
  }
  if (u.keys) {
    // In squared logits: engines may fold any part of the logits' scale into their queries.
    const double scale = layer(u).logit_scale;
    place(ridged(query_metric(layer(u), learnt, domain(), u.heads)), key_factor * scale * scale, 0,
          metric);
  }
  if (u.values) {
    const auto d = static_cast<std::size_t>(layer(u).value_dim);
    MatrixD values(nv, nv);
    for (std::int32_t h = 0; h < u.heads.count; ++h) {
      const float* from =
          learnt.output_metric.data() + static_cast<std::size_t>(u.heads.first + h) * d * d;
      const std::size_t at = static_cast<std::size_t>(h) * d;
      for (std::size_t i = 0; i < d; ++i) {
        for (std::size_t j = 0; j < d; ++j) values(at + i, at + j) = from[i * d + j];
      }
    }
    place(ridged(values), value_factor, nk, metric);
  }
  return metric;
}

Status BandsDesigner::analyse(BandsUnit& u, const LayerCalibration& learnt, double alpha,
                              bool directions) const {
  const MatrixD second = take_moment(u, learnt);
  KVSPAN_TRY(Transform transform, leading_transform(second, metric_of(u, learnt, alpha)));
  u.power = std::move(transform.power);
  if (directions) u.synthesis = std::move(transform.synthesis);
  return {};
}

Status BandsDesigner::finish(BandsUnit& u, const LayerCalibration& learnt, double alpha,
                             const std::shared_ptr<Ledger>& ledger) const {
  const std::size_t d = u.power.size(), nk = key_width(u);
  const auto dk = static_cast<std::size_t>(layer(u).key_dim);
  const auto dv = static_cast<std::size_t>(layer(u).value_dim);
  BandsParts parts = bands_parts(layer(u), u.heads.count, u.keys, u.values, options_);
  parts.key_mean = std::span(u.mean).first(nk);
  parts.value_mean = std::span(u.mean).subspan(nk);
  const MatrixD metric = metric_of(u, learnt, alpha);
  const MetricParts held(metric, nk, dk, dv);
  parts.weights = held.weights;
  parts.key_blocks = held.key_blocks;
  parts.value_blocks = held.value_blocks;
  const Matrix synthesis = std::move(u.synthesis);
  parts.synthesis = synthesis.view();
  parts.bits = u.bits;
  std::vector<float> sigma(d), steps(d, 1.0f);
  for (std::size_t i = 0; i < d; ++i) {
    sigma[i] = static_cast<float>(std::sqrt(u.power[i]));
    if (options_.own && sigma[i] > 0.0f) sigma[i] = std::max(sigma[i], kLeastSpread);
  }
  parts.sigma = sigma;
  KVSPAN_TRY(const BandsLayout layout, BandsLayout::create(u.bits, options_.quantizer));
  const Matrix c = sample_coefficients(
      u, learnt, stored_analysis(metric, synthesis, nk, dk, dv, layout), layout, sigma);
  const std::vector<float> fitted = fit_band_steps(c, layout);
  for (std::size_t p = 0; p < fitted.size(); ++p) steps[layout.order()[p]] = fitted[p];
  parts.steps = steps;
  const MemoryKind kind = options_.own ? MemoryKind::kBases : MemoryKind::kShared;
  KVSPAN_TRY(u.code, BandsCode::create(parts, ledger, kind));
  return {};
}

// c / g of the sample rows, [samples, stored], in stored order; analysis [D, stored].
Matrix BandsDesigner::sample_coefficients(const BandsUnit& u, const LayerCalibration& learnt,
                                          const Matrix& analysis, const BandsLayout& layout,
                                          const std::vector<float>& sigma) const {
  const LayerShape& l = layer(u);
  const auto all = static_cast<std::size_t>(l.kv_heads);
  const auto dk = static_cast<std::size_t>(l.key_dim), dv = static_cast<std::size_t>(l.value_dim);
  const std::size_t side = all * (dk + dv), samples = calibration_.sample_positions.size();
  const auto first = static_cast<std::size_t>(u.heads.first);
  const std::size_t nk = key_width(u), nv = value_width(u);
  Matrix out(samples, layout.stored());
  std::vector<float> z(nk + nv);
  for (std::size_t s = 0; s < samples; ++s) {
    const float* row = learnt.sample_rows.data() + s * side;
    const std::int32_t position = calibration_.sample_positions[s];
    std::copy_n(row + first * dk, nk, z.data());
    std::copy_n(row + all * dk + first * dv, nv, z.data() + nk);
    const std::int32_t n = options_.anchor;
    if (domain() == Domain::kPostRopeKey) {
      for (std::size_t h = 0; h * dk < nk; ++h) rope_rotate(l.rope, position, z.data() + h * dk);
    }
    for (std::size_t i = 0; i < z.size(); ++i) z[i] -= u.mean[i];
    if (n > 0) {
      const std::int32_t offset = position % n - n / 2;
      for (std::size_t h = 0; h * dk < nk; ++h) rope_offset(l.rope, offset, z.data() + h * dk);
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
