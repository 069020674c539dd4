// SPDX-License-Identifier: Apache-2.0
#include "linalg/right_singular.h"

#include <algorithm>
#include <cmath>

#include "base/expect.h"
#include "linalg/panel.h"
#include "linalg/symmetric_eigen.h"

namespace kvspan {
namespace {

using detail::Panel;

// d <= n: the eigenvectors of S'S are the v_i.
RightSingular through_columns(MatrixView S, std::size_t count) {
  const std::size_t d = S.shape[1];
  Panel G = detail::gram_of_columns(Panel::of(S));
  RightSingular result{std::vector<double>(d), MatrixD(d, d)};
  detail::symmetric_eigen_in_place(G, result.squared, result.scaled.mutable_view());
  MatrixD scaled(count, d);
  for (std::size_t i = 0; i < count; ++i) {
    const double sigma = std::sqrt(std::max(result.squared[i], 0.0));
    for (std::size_t j = 0; j < d; ++j) scaled(i, j) = sigma * result.scaled(i, j);
  }
  result.scaled = std::move(scaled);
  return result;
}

// n < d: the eigenvectors of SS' are the u_i, and u_i' S = sigma_i v_i.
RightSingular through_rows(MatrixView S, std::size_t count) {
  const std::size_t n = S.shape[0], d = S.shape[1];
  Panel G = detail::gram_of_columns(Panel::transposed(S));
  RightSingular result{std::vector<double>(n), MatrixD(count, d)};
  MatrixD U(n, n);
  detail::symmetric_eigen_in_place(G, result.squared, U.mutable_view());
  const Panel product = detail::outer_product(Panel::transposed(U.top(count)), Panel::of(S));
  for (std::size_t i = 0; i < count; ++i) {
    std::copy(product.row(i), product.row(i) + d, result.scaled.row(i));
  }
  return result;
}

}  // namespace

RightSingular right_singular(MatrixView S, std::size_t count) {
  const std::size_t n = S.shape[0], d = S.shape[1];
  KVSPAN_EXPECT(count <= std::min(n, d), "no more singular vectors than rows or columns");
  RightSingular result = d <= n ? through_columns(S, count) : through_rows(S, count);
  for (double& value : result.squared) value = std::max(value, 0.0);
  return result;
}

}  // namespace kvspan
