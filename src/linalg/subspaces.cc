// SPDX-License-Identifier: Apache-2.0
#include "linalg/subspaces.h"

#include <algorithm>
#include <cmath>

#include "base/expect.h"
#include "linalg/panel.h"
#include "linalg/symmetric_eigen.h"

namespace kvspan {
namespace {

using detail::Panel;

// Eigenvalues of A'A, descending, clamped to 0 .. 1.
std::vector<double> squares_of(const Panel& A) {
  Panel G = detail::gram_of_columns(A);
  std::vector<double> values(A.cols());
  MatrixD unused(A.cols(), A.cols());
  detail::symmetric_eigen_in_place(G, values, unused.mutable_view());
  for (double& value : values) value = std::clamp(value, 0.0, 1.0);
  return values;
}

}  // namespace

std::vector<double> principal_angles(MatrixView B1, MatrixView B2) {
  KVSPAN_EXPECT(B1.shape[1] == B2.shape[1], "subspaces of the same space");
  if (B1.shape[0] < B2.shape[0]) std::swap(B1, B2);
  const std::size_t k = B2.shape[0], d = B2.shape[1];
  const Panel first = Panel::of(B1);
  const Panel cosines = detail::outer_product(Panel::transposed(B1), Panel::transposed(B2));
  // What of B2 lies outside B1, as columns [d, k].
  const Panel inside = detail::outer_product(first, cosines);
  Panel sines(d, k);
  for (std::size_t i = 0; i < d; ++i) {
    for (std::size_t j = 0; j < k; ++j) sines(i, j) = B2.row(j)[i] - inside(i, j);
  }
  const std::vector<double> cosine_squares = squares_of(cosines);
  const std::vector<double> sine_squares = squares_of(sines);
  std::vector<double> angles(k);
  for (std::size_t i = 0; i < k; ++i) {
    const double sine_square = sine_squares[k - 1 - i];
    angles[i] = cosine_squares[i] < 0.5 ? std::acos(std::sqrt(cosine_squares[i]))
                                        : std::asin(std::sqrt(sine_square));
  }
  return angles;
}

double subspace_overlap(MatrixView B1, MatrixView B2) {
  KVSPAN_EXPECT(B1.shape[1] == B2.shape[1], "subspaces of the same space");
  KVSPAN_EXPECT(B1.shape[0] > 0 && B2.shape[0] > 0, "subspaces of at least one dimension");
  const Panel C = detail::outer_product(Panel::transposed(B1), Panel::transposed(B2));
  double sum = 0.0;
  for (std::size_t i = 0; i < C.rows(); ++i)
    sum += detail::inner_product(C.row(i), C.row(i), C.cols());
  return sum / static_cast<double>(std::min(B1.shape[0], B2.shape[0]));
}

double orthonormality_defect(MatrixView B) {
  const Panel G = detail::gram_of_columns(Panel::transposed(B));
  double worst = 0.0;
  for (std::size_t i = 0; i < G.rows(); ++i) {
    for (std::size_t j = 0; j <= i; ++j) {
      worst = std::max(worst, std::abs(G(i, j) - (i == j ? 1.0 : 0.0)));
    }
  }
  return worst;
}

}  // namespace kvspan
