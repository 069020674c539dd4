// SPDX-License-Identifier: Apache-2.0
#include "method/calibrated/learned_code.h"

#include <algorithm>
#include <cmath>

#include "base/fail.h"
#include "linalg/symmetric_eigen.h"
#include "subspace/energy_rank.h"

namespace kvspan {
namespace {

constexpr double kMetricRidge = 1e-3;
// Of a metric by which hardly anything counts: squares of what it weighs stay within the range of f32.
constexpr double kLeastRidge = 1e-24;

// Square blocks on the diagonal, outside of which a metric is zero, with their roots.
struct Block {
  std::size_t first = 0;
  MatrixD root, inverse;
};

// Where a block that begins at `first` ends: nothing beyond it is joined to anything in it.
std::size_t block_end(const MatrixD& metric, std::size_t first) {
  std::size_t end = first + 1;
  for (std::size_t i = first; i < end; ++i) {
    for (std::size_t j = metric.cols(); j > end; --j) {
      if (metric(i, j - 1) != 0.0 || metric(j - 1, i) != 0.0) end = j;
    }
  }
  return end;
}

Result<std::vector<Block>> metric_roots(const MatrixD& metric) {
  std::vector<Block> blocks;
  for (std::size_t first = 0; first < metric.rows();) {
    const std::size_t end = block_end(metric, first), n = end - first;
    MatrixD part(n, n);
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t j = 0; j < n; ++j) part(i, j) = metric(first + i, first + j);
    }
    KVSPAN_TRY(const SymmetricEigen eigen, symmetric_eigen(part.view()));
    if (!(eigen.values.back() > 0.0)) {
      return fail(ErrorCode::kInvalidArgument,
                  "an error metric is not positive definite: its least eigenvalue is {:.3g}",
                  eigen.values.back());
    }
    // V' diag(values^+-1/2) V, rows of V the eigenvectors.
    Block block{first, MatrixD(n, n), MatrixD(n, n)};
    for (std::size_t k = 0; k < n; ++k) {
      const double root = std::sqrt(eigen.values[k]);
      const double* v = eigen.vectors.row(k);
      for (std::size_t i = 0; i < n; ++i) {
        for (std::size_t j = 0; j < n; ++j) {
          block.root(i, j) += root * v[i] * v[j];
          block.inverse(i, j) += v[i] * v[j] / root;
        }
      }
    }
    blocks.push_back(std::move(block));
    first = end;
  }
  return blocks;
}

// M diag(blocks), by rows; the blocks are symmetric.
MatrixD times_blocks(const MatrixD& M, const std::vector<Block>& blocks, MatrixD Block::*which) {
  MatrixD out(M.rows(), M.cols());
  for (const Block& block : blocks) {
    const MatrixD& factor = block.*which;
    const std::size_t n = factor.rows();
    for (std::size_t i = 0; i < M.rows(); ++i) {
      double* to = out.row(i) + block.first;
      for (std::size_t k = 0; k < n; ++k) {
        const double x = M(i, block.first + k);
        const double* from = factor.row(k);
        for (std::size_t j = 0; j < n; ++j) to[j] += x * from[j];
      }
    }
  }
  return out;
}

MatrixD transpose(const MatrixD& M) {
  MatrixD out(M.cols(), M.rows());
  for (std::size_t i = 0; i < M.rows(); ++i) {
    for (std::size_t j = 0; j < M.cols(); ++j) out(j, i) = M(i, j);
  }
  return out;
}

CodeParts parts_of(const CodeStyle& style, std::span<const float> mean) {
  CodeParts parts;
  parts.domain = style.domain;
  parts.heads = style.heads;
  parts.dim = style.dim;
  parts.anchor_block = style.domain == Domain::kAnchoredKey ? style.anchor_block : 0;
  if (style.rope != nullptr && style.domain != Domain::kPostRopeKey) parts.rope = *style.rope;
  parts.mean = mean;
  parts.codec = style.codec;
  parts.gamma = style.domain == Domain::kValue ? 1.0f : style.gamma;
  return parts;
}

}  // namespace

std::int32_t RankRule::choose(std::span<const double> squared) const {
  const auto most = static_cast<std::int32_t>(squared.size());
  const std::int32_t wanted =
      directions > 0 ? directions : static_cast<std::int32_t>(rank_for_energy(squared, energy));
  return std::clamp(wanted, 1, most);
}

Result<std::shared_ptr<const Code>> orthonormal_code(const CodeStyle& style, MatrixView basis,
                                                     std::span<const float> mean,
                                                     const std::shared_ptr<Ledger>& ledger,
                                                     MemoryKind kind) {
  CodeParts parts = parts_of(style, mean);
  parts.analysis = basis;
  parts.store = style.bases;
  return Code::create(parts, ledger, kind);
}

Matrix basis_rows(const Code& code) {
  const auto r = static_cast<std::size_t>(code.rank()), d = static_cast<std::size_t>(code.width());
  const std::vector<float> columns = code.basis().decoded();
  Matrix basis(r, d);
  for (std::size_t j = 0; j < d; ++j) {
    for (std::size_t i = 0; i < r; ++i) basis(i, j) = columns[j * r + i];
  }
  return basis;
}

MatrixD ridged(const MatrixD& metric) {
  MatrixD out = metric;
  double trace = 0.0;
  for (std::size_t i = 0; i < metric.rows(); ++i) trace += metric(i, i);
  const double ridge =
      trace > 0.0 ? std::max(kMetricRidge * trace / static_cast<double>(metric.rows()), kLeastRidge) : 1.0;
  for (std::size_t i = 0; i < metric.rows(); ++i) out(i, i) += ridge;
  return out;
}

Result<Transform> leading_transform(const MatrixD& moment, const std::optional<MatrixD>& metric) {
  const std::size_t n = moment.rows();
  std::vector<Block> blocks;
  MatrixD weighed = moment;
  if (metric) {
    KVSPAN_TRY(blocks, metric_roots(*metric));
    weighed =
        times_blocks(transpose(times_blocks(moment, blocks, &Block::root)), blocks, &Block::root);
  }
  KVSPAN_TRY(SymmetricEigen eigen, symmetric_eigen(weighed.view()));
  Transform transform{Matrix(n, n), Matrix(), std::move(eigen.values)};
  for (double& power : transform.power) power = std::max(power, 0.0);
  // Rows of `vectors` are the columns of U: A = U' M^1/2, B' = U' M^-1/2.
  const auto rounded = [&](const MatrixD& from, bool transposed) {
    Matrix to(n, n);
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t j = 0; j < n; ++j) {
        (transposed ? to(j, i) : to(i, j)) = static_cast<float>(from(i, j));
      }
    }
    return to;
  };
  if (!metric) {
    transform.analysis = rounded(eigen.vectors, false);
    return transform;
  }
  transform.analysis = rounded(times_blocks(eigen.vectors, blocks, &Block::root), false);
  transform.synthesis = rounded(times_blocks(eigen.vectors, blocks, &Block::inverse), true);
  return transform;
}

Result<std::shared_ptr<const Code>> transform_code(const CodeStyle& style,
                                                   const Transform& transform, std::int32_t rank,
                                                   std::span<const float> mean,
                                                   const std::shared_ptr<Ledger>& ledger,
                                                   MemoryKind kind) {
  const auto r = static_cast<std::size_t>(rank);
  CodeParts parts = parts_of(style, mean);
  parts.analysis = transform.analysis.top(r);
  if (transform.synthesis.rows() > 0) {
    parts.synthesis = {transform.synthesis.data(),
                       {transform.synthesis.rows(), r},
                       {transform.synthesis.cols(), 1}};
  }
  return Code::create(parts, ledger, kind);
}

}  // namespace kvspan
