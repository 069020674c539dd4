// SPDX-License-Identifier: Apache-2.0
#include "api/sample_residuals.h"

#include <algorithm>
#include <cmath>

#include "base/fail.h"
#include "base/quantile.h"
#include "cache/rope.h"
#include "linalg/symmetric_eigen.h"

namespace kvspan {
namespace {

constexpr std::size_t kRanks = kResidualRanks;

// Appends [kResidualRanks][percentiles] of one head to `out`. rows: [samples, dim]; moment: the
// head's block of a matrix.
Status add_head(TensorView<const float, 2> moment, const Matrix& rows, std::vector<float>& out) {
  const std::size_t dim = rows.cols();
  MatrixD block(dim, dim);
  for (std::size_t i = 0; i < dim; ++i) {
    for (std::size_t j = 0; j < dim; ++j) block(i, j) = moment.row(i)[j];
  }
  KVSPAN_TRY(const SymmetricEigen eigen, symmetric_eigen(block.view()));
  std::vector<std::vector<double>> residuals(kRanks, std::vector<double>(rows.rows()));
  std::vector<double> squares(dim);
  for (std::size_t row = 0; row < rows.rows(); ++row) {
    const float* x = rows.row(row);
    for (std::size_t i = 0; i < dim; ++i) {
      const double* v = eigen.vectors.row(i);
      double c = 0.0;
      for (std::size_t j = 0; j < dim; ++j) c += v[j] * x[j];
      squares[i] = c * c;
    }
    double tail = 0.0;
    std::size_t from = dim;  // squares[from..] are in `tail`
    for (std::size_t r = kRanks; r > 0; --r) {
      for (const std::size_t rank = r * dim / (kRanks + 1); from > rank;) tail += squares[--from];
      residuals[r - 1][row] = tail;
    }
    while (from > 0) tail += squares[--from];
    for (auto& at_rank : residuals) {
      at_rank[row] = tail > 0.0 ? std::sqrt(at_rank[row] / tail) : 0.0;
    }
  }
  for (const auto& at_rank : residuals) {
    for (const int percentile : kResidualPercentiles) {
      out.push_back(static_cast<float>(quantile(at_rank, percentile / 100.0)));
    }
  }
  return {};
}

}  // namespace

Status add_sample_residuals(const LayerShape& shape, std::span<const std::int32_t> positions,
                            LayerCalibration& layer) {
  const auto heads = static_cast<std::size_t>(shape.kv_heads);
  const auto dk = static_cast<std::size_t>(shape.key_dim);
  const auto dv = static_cast<std::size_t>(shape.value_dim);
  const std::size_t joint = heads * (dk + dv);
  layer.key_residuals.clear();
  layer.value_residuals.clear();
  for (std::size_t h = 0; h < heads; ++h) {
    Matrix keys(positions.size(), dk), values(positions.size(), dv);
    for (std::size_t i = 0; i < positions.size(); ++i) {
      const float* row = layer.sample_rows.data() + i * joint;
      std::copy_n(row + h * dk, dk, keys.row(i));
      rope_rotate(shape.rope, positions[i], keys.row(i));
      std::copy_n(row + heads * dk + h * dv, dv, values.row(i));
    }
    const TensorView<const float, 2> key_moment(
        layer.rotated_key_moment.data() + h * dk * (heads * dk + 1), {dk, dk}, {heads * dk, 1});
    const TensorView<const float, 2> value_moment(
        layer.joint_moment.data() + (heads * dk + h * dv) * (joint + 1), {dv, dv}, {joint, 1});
    KVSPAN_CHECK_OK(add_head(key_moment, keys, layer.key_residuals));
    KVSPAN_CHECK_OK(add_head(value_moment, values, layer.value_residuals));
  }
  return {};
}

}  // namespace kvspan
