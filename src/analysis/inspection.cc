// SPDX-License-Identifier: Apache-2.0
#include "analysis/inspection.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "analysis/coding_gain.h"
#include "analysis/pool.h"
#include "analysis/sensitivity.h"
#include "base/fail.h"

namespace kvspan {
namespace {

struct Work {
  const CacheShape& shape;
  std::span<const Calibration> texts;
  const Calibration& pooled;
  const InspectOptions& options;
};

std::vector<Side> sides_of(const InspectOptions& options) {
  std::vector<Side> sides{Side::kKeyPre, Side::kKeyPost};
  if (options.anchor > 0) sides.push_back(Side::kKeyAnchored);
  sides.push_back(Side::kValue);
  return sides;
}

Result<std::vector<std::size_t>> ranks_for(const InspectOptions& options, std::size_t dim) {
  std::vector<std::size_t> ranks = options.ranks;
  if (ranks.empty()) ranks = {dim / 8, dim / 4, dim / 2};
  for (std::size_t& rank : ranks) {
    if (rank > dim) {
      return fail(ErrorCode::kInvalidArgument, "rank {} exceeds a head's {} dimensions", rank, dim);
    }
    rank = std::max<std::size_t>(rank, 1);
  }
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

// The weight of errors of one head: queries times the logit scale, or the output metric.
MatrixD error_weight(const LayerShape& shape, const LayerCalibration& layer, Side side,
                     std::size_t head) {
  const auto dim = static_cast<std::size_t>(dim_of(shape, side));
  const bool value = side == Side::kValue;
  const std::vector<float>& from = value ? layer.output_metric : layer.query_moment;
  const double scale = value ? 1.0 : double{shape.logit_scale} * shape.logit_scale;
  MatrixD M(dim, dim);
  for (std::size_t i = 0; i < dim * dim; ++i) {
    M.data()[i] = scale * from[head * dim * dim + i];
  }
  return M;
}

Status add_corpora(const Work& work, std::size_t index, HeadInspection& out) {
  const LayerShape& shape = work.shape.layers[index];
  const auto dim = static_cast<std::size_t>(dim_of(shape, out.side));
  const MomentChoice choice{work.options.anchor, work.options.centred};
  std::vector<SymmetricEigen> eigens;
  for (const Calibration& text : work.texts) {
    const MatrixD moment = layer_moment(shape, text.layers[index], out.side, choice);
    KVSPAN_TRY(SymmetricEigen eigen, symmetric_eigen(head_block(moment, out.head, dim).view()));
    out.by_corpus.push_back(figures_of(eigen.values));
    eigens.push_back(std::move(eigen));
  }
  for (std::size_t a = 0; a < eigens.size(); ++a) {
    for (std::size_t b = 0; b < eigens.size(); ++b) {
      if (a == b) continue;
      CorpusPair pair{a, b, {}};
      for (const std::size_t r : out.ranks) {
        pair.comparisons.push_back(compare(eigens[a], eigens[b], r));
      }
      out.pairs.push_back(std::move(pair));
    }
  }
  return {};
}

Result<HeadInspection> inspect_head(const Work& work, std::size_t index, Side side,
                                    std::size_t head, const MatrixD& moment,
                                    const MatrixD& covariance) {
  const LayerShape& shape = work.shape.layers[index];
  const auto dim = static_cast<std::size_t>(dim_of(shape, side));
  HeadInspection out;
  out.side = side;
  out.head = head;
  KVSPAN_TRY(out.ranks, ranks_for(work.options, dim));
  KVSPAN_TRY(const SymmetricEigen eigen, symmetric_eigen(head_block(moment, head, dim).view()));
  out.spectrum = eigen.values;
  for (double& value : out.spectrum) value = std::max(value, 0.0);
  out.figures = figures_of(eigen.values);
  out.gain_bits = coding_gain(head_block(covariance, head, dim).view());
  if (side == Side::kKeyPost || side == Side::kValue) {
    const MatrixD M = error_weight(shape, work.pooled.layers[index], side, head);
    for (const std::size_t r : out.ranks) {
      out.sensitivities.push_back(discarded_energy(M.view(), eigen, r));
    }
  }
  KVSPAN_CHECK_OK(add_corpora(work, index, out));

  const Calibration& first = work.texts.front();
  const Matrix rows = sample_rows(shape, first.sample_positions, first.layers[index], side, head,
                                  work.options.anchor);
  const std::span<const std::int32_t> positions = first.sample_positions;
  const auto window = positions.first(first_window(positions));
  KVSPAN_TRY(out.chunks,
             inspect_chunks(rows.top(window.size()), window, work.options.chunk, out.ranks));
  out.residuals = residuals_by_position(rows.view(), positions, eigen, out.ranks, first.window,
                                        work.options.bins);
  return out;
}

std::vector<std::size_t> blocks_of(std::size_t heads, std::size_t dim) {
  return std::vector<std::size_t>(heads, dim);
}

// Keys and values divided by the roots of their mean variances, so that neither counts for more
// because of its units.
JointGain joint_gain(const LayerShape& shape, const LayerCalibration& layer, Side side,
                     std::int32_t anchor) {
  MatrixD C =
      key_value_moment(shape, layer, {side == Side::kKeyAnchored ? anchor : 0, /*centred=*/true});
  const auto heads = static_cast<std::size_t>(shape.kv_heads);
  const auto dk = static_cast<std::size_t>(shape.key_dim);
  const auto dv = static_cast<std::size_t>(shape.value_dim);
  const std::size_t keys = heads * dk, all = C.rows();
  const auto scale = [&](std::size_t begin, std::size_t end) {
    double trace = 0.0;
    for (std::size_t i = begin; i < end; ++i) trace += C(i, i);
    const double factor =
        trace > 0.0 ? 1.0 / std::sqrt(trace / static_cast<double>(end - begin)) : 0.0;
    for (std::size_t i = begin; i < end; ++i) {
      for (std::size_t j = 0; j < all; ++j) {
        C(i, j) *= factor;
        C(j, i) *= factor;
      }
    }
  };
  scale(0, keys);
  scale(keys, all);
  std::vector<std::size_t> apart = blocks_of(heads, dk);
  const auto values = blocks_of(heads, dv);
  apart.insert(apart.end(), values.begin(), values.end());
  const std::vector<std::size_t> two{keys, all - keys};
  return {side, coding_gain(C.view(), apart), coding_gain(C.view(), two), coding_gain(C.view())};
}

Result<LayerInspection> inspect_layer(const Work& work, std::size_t index,
                                      std::span<const Side> sides) {
  const LayerShape& shape = work.shape.layers[index];
  const LayerCalibration& layer = work.pooled.layers[index];
  const auto heads = static_cast<std::size_t>(shape.kv_heads);
  LayerInspection out;
  out.layer = index;
  for (const Side side : sides) {
    const auto dim = static_cast<std::size_t>(dim_of(shape, side));
    const MatrixD covariance = layer_moment(shape, layer, side, {work.options.anchor, true});
    const MatrixD moment = work.options.centred
                               ? covariance
                               : layer_moment(shape, layer, side, {work.options.anchor, false});
    for (std::size_t head = 0; head < heads; ++head) {
      KVSPAN_TRY(auto one, inspect_head(work, index, side, head, moment, covariance));
      out.heads.push_back(std::move(one));
    }
    const auto apart = blocks_of(heads, dim);
    out.gains.push_back(
        {side, coding_gain(covariance.view(), apart), coding_gain(covariance.view())});
    if (side == Side::kKeyPre || side == Side::kKeyAnchored) {
      out.joint.push_back(joint_gain(shape, layer, side, work.options.anchor));
    }
  }
  return out;
}

}  // namespace

Result<Inspection> inspect_calibrations(
    const CacheShape& shape, std::span<const Calibration> texts, const InspectOptions& options,
    const std::function<bool(std::size_t done, std::size_t total)>& progress) {
  std::vector<std::size_t> layers = options.layers;
  if (layers.empty()) {
    layers.resize(shape.layers.size());
    std::iota(layers.begin(), layers.end(), std::size_t{0});
  }
  for (const std::size_t layer : layers) {
    if (layer >= shape.layers.size()) {
      return fail(ErrorCode::kInvalidArgument, "there is no layer {}: the model has 0 to {}", layer,
                  shape.layers.size() - 1);
    }
  }
  const Calibration pooled = pool_calibrations(texts);
  const Work work{shape, texts, pooled, options};
  Inspection out;
  out.sides = sides_of(options);
  for (const std::size_t layer : layers) {
    KVSPAN_TRY(auto one, inspect_layer(work, layer, out.sides));
    out.layers.push_back(std::move(one));
    if (progress && !progress(out.layers.size(), layers.size())) {
      out.cancelled = out.layers.size() < layers.size();
      break;
    }
  }
  return out;
}

}  // namespace kvspan
