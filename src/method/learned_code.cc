// SPDX-License-Identifier: Apache-2.0
#include "method/learned_code.h"

#include <algorithm>
#include <cmath>

#include "base/fail.h"
#include "linalg/symmetric_eigen.h"
#include "subspace/energy_rank.h"

namespace kvspan {
namespace {

constexpr double kMetricRidge = 1e-3;

MatrixD product(const MatrixD& a, const MatrixD& b) {
  MatrixD c(a.rows(), b.cols());
  for (std::size_t i = 0; i < a.rows(); ++i) {
    for (std::size_t k = 0; k < a.cols(); ++k) {
      const double x = a(i, k);
      if (x == 0.0) continue;
      const double* from = b.row(k);
      double* to = c.row(i);
      for (std::size_t j = 0; j < b.cols(); ++j) to[j] += x * from[j];
    }
  }
  return c;
}

struct Roots {
  MatrixD root, inverse;
};

Result<Roots> metric_roots(const MatrixD& metric) {
  const std::size_t n = metric.rows();
  KVSPAN_TRY(const SymmetricEigen eigen, symmetric_eigen(metric.view()));
  if (!(eigen.values.back() > 0.0)) {
    return fail(ErrorCode::kInvalidArgument,
                "an error metric is not positive definite: its least eigenvalue is {:.3g}",
                eigen.values.back());
  }
  // V' diag(values^+-1/2) V, rows of V the eigenvectors.
  MatrixD scaled(n, n), inverse(n, n), transposed(n, n);
  for (std::size_t k = 0; k < n; ++k) {
    const double root = std::sqrt(eigen.values[k]);
    for (std::size_t i = 0; i < n; ++i) {
      scaled(k, i) = root * eigen.vectors(k, i);
      inverse(k, i) = eigen.vectors(k, i) / root;
      transposed(i, k) = eigen.vectors(k, i);
    }
  }
  return Roots{product(transposed, scaled), product(transposed, inverse)};
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
  return Code::create(parts, ledger, kind);
}

MatrixD ridged(const MatrixD& metric) {
  MatrixD out = metric;
  double trace = 0.0;
  for (std::size_t i = 0; i < metric.rows(); ++i) trace += metric(i, i);
  const double ridge =
      trace > 0.0 ? kMetricRidge * trace / static_cast<double>(metric.rows()) : 1.0;
  for (std::size_t i = 0; i < metric.rows(); ++i) out(i, i) += ridge;
  return out;
}

Result<Transform> leading_transform(const MatrixD& moment, const std::optional<MatrixD>& metric) {
  const std::size_t n = moment.rows();
  Roots roots;
  if (metric) {
    KVSPAN_TRY(roots, metric_roots(*metric));
  }
  const MatrixD weighed = metric ? product(product(roots.root, moment), roots.root) : moment;
  KVSPAN_TRY(SymmetricEigen eigen, symmetric_eigen(weighed.view()));
  Transform transform{Matrix(n, n), Matrix(), std::move(eigen.values)};
  for (double& power : transform.power) power = std::max(power, 0.0);
  const MatrixD analysis = metric ? product(eigen.vectors, roots.root) : std::move(eigen.vectors);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < n; ++j) {
      transform.analysis(i, j) = static_cast<float>(analysis(i, j));
    }
  }
  if (!metric) return transform;
  // B = M^-1/2 U; rows of `vectors` are the columns of U.
  transform.synthesis = Matrix(n, n);
  const MatrixD transposed = product(eigen.vectors, roots.inverse);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < n; ++j) {
      transform.synthesis(j, i) = static_cast<float>(transposed(i, j));
    }
  }
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
  Matrix synthesis;
  if (transform.synthesis.rows() > 0) {
    parts.synthesis = {transform.synthesis.data(),
                       {transform.synthesis.rows(), r},
                       {transform.synthesis.cols(), 1}};
  }
  return Code::create(parts, ledger, kind);
}

}  // namespace kvspan
