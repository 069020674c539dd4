// SPDX-License-Identifier: Apache-2.0
#include "analysis/timeline.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "analysis/compare.h"
#include "base/fail.h"
#include "cache/rope.h"
#include "linalg/panel.h"

namespace kvspan {
namespace {

// E[x x'] of rows [begin, end).
Result<SymmetricEigen> eigen_of_rows(MatrixView rows, std::size_t begin, std::size_t end) {
  const std::size_t d = rows.shape[1];
  const detail::Panel G = detail::gram_of_columns(detail::Panel::of<float>(
      MatrixView(rows.row(begin), {end - begin, d}, {rows.strides[0], rows.strides[1]})));
  MatrixD moment(d, d);
  for (std::size_t i = 0; i < d; ++i) {
    for (std::size_t j = 0; j <= i; ++j) moment(i, j) = G(i, j) / static_cast<double>(end - begin);
  }
  return symmetric_eigen(moment.view());
}

}  // namespace

Matrix sample_rows(const LayerShape& shape, std::span<const std::int32_t> positions,
                   const LayerCalibration& layer, Side side, std::size_t head,
                   std::int32_t anchor) {
  const auto heads = static_cast<std::size_t>(shape.kv_heads);
  const auto dk = static_cast<std::size_t>(shape.key_dim);
  const auto dv = static_cast<std::size_t>(shape.value_dim);
  const bool value = side == Side::kValue;
  Matrix rows(positions.size(), value ? dv : dk);
  for (std::size_t i = 0; i < positions.size(); ++i) {
    const float* from = layer.sample_rows.data() + i * heads * (dk + dv);
    from += value ? heads * dk + head * dv : head * dk;
    float* to = rows.row(i);
    std::copy_n(from, rows.cols(), to);
    if (side == Side::kKeyPost) rope_rotate(shape.rope, positions[i], to);
    if (side == Side::kKeyAnchored) {
      rope_offset(shape.rope, positions[i] - anchor_position(positions[i], anchor), to);
    }
  }
  return rows;
}

std::size_t first_window(std::span<const std::int32_t> positions) {
  std::size_t n = std::min<std::size_t>(1, positions.size());
  while (n < positions.size() && positions[n] > positions[n - 1]) ++n;
  return n;
}

Result<std::vector<ChunkInspection>> inspect_chunks(MatrixView rows,
                                                    std::span<const std::int32_t> positions,
                                                    std::int32_t chunk,
                                                    std::span<const std::size_t> ranks) {
  std::vector<ChunkInspection> out;
  std::optional<SymmetricEigen> before;
  for (std::size_t begin = 0; begin < positions.size();) {
    ChunkInspection one;
    one.from = positions[begin] / chunk * chunk;
    one.to = one.from + chunk;
    std::size_t end = begin;
    while (end < positions.size() && positions[end] < one.to) ++end;
    one.rows = end - begin;
    KVSPAN_TRY(SymmetricEigen eigen, eigen_of_rows(rows, begin, end));
    one.figures = figures_of(eigen.values);
    if (before) {
      for (const std::size_t r : ranks) one.overlaps.push_back(compare(*before, eigen, r).overlap);
    }
    one.spectrum = eigen.values;
    before = std::move(eigen);
    out.push_back(std::move(one));
    begin = end;
  }
  return out;
}

std::vector<PositionBin> residuals_by_position(MatrixView rows,
                                               std::span<const std::int32_t> positions,
                                               const SymmetricEigen& directions,
                                               std::span<const std::size_t> ranks,
                                               std::int32_t window, std::int32_t bins) {
  const std::size_t d = rows.shape[1];
  MatrixD columns(d, d);  // directions as columns: rows of coefficients add up without reductions
  for (std::size_t i = 0; i < d; ++i) {
    for (std::size_t j = 0; j < d; ++j) columns(i, j) = directions.vectors(j, i);
  }
  std::vector<PositionBin> out(static_cast<std::size_t>(bins));
  for (std::int32_t b = 0; b < bins; ++b) {
    PositionBin& bin = out[static_cast<std::size_t>(b)];
    bin.from = static_cast<std::int32_t>(std::int64_t{window} * b / bins);
    bin.to = static_cast<std::int32_t>(std::int64_t{window} * (b + 1) / bins);
    bin.residuals.resize(ranks.size());
  }
  std::vector<double> tail(d + 1);
  for (std::size_t row = 0; row < positions.size(); ++row) {
    const auto found = std::find_if(
        out.begin(), out.end(), [&](const PositionBin& bin) { return positions[row] < bin.to; });
    if (found == out.end()) continue;
    std::fill(tail.begin(), tail.end(), 0.0);
    for (std::size_t i = 0; i < d; ++i) {
      const double x = rows.row(row)[i];
      const double* from = columns.row(i);
      for (std::size_t j = 0; j < d; ++j) tail[j] += x * from[j];
    }
    for (std::size_t j = d; j-- > 0;) tail[j] = tail[j] * tail[j] + tail[j + 1];
    ++found->rows;
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      if (tail[0] > 0.0) found->residuals[r] += std::sqrt(tail[ranks[r]] / tail[0]);
    }
  }
  std::erase_if(out, [](const PositionBin& bin) { return bin.rows == 0; });
  for (PositionBin& bin : out) {
    for (double& residual : bin.residuals) residual /= static_cast<double>(bin.rows);
  }
  return out;
}

}  // namespace kvspan
