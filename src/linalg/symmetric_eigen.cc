// SPDX-License-Identifier: Apache-2.0
#include "linalg/symmetric_eigen.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/expect.h"
#include "base/fail.h"
#include "linalg/finite.h"
#include "linalg/householder.h"
#include "linalg/panel.h"

namespace kvspan {
namespace detail {
namespace {

// Entries below the diagonal that may be taken for 0, as a share of |T|. Two units in the last
// place of |T|: what the reduction to T has left is larger, and T moves by no more than twice this.
constexpr double kNegligible = 0x1p-51;

// A tridiagonal matrix: diagonal[n], below[n] (below[i] joins i and i+1, the last is 0).
struct Tridiagonal {
  std::vector<double> diagonal;
  std::vector<double> below;
};

// Reduces A (its blocks on and below the diagonal) to T = Q' A Q. Reflector k, which has its first
// entry at k+1, stays in row k of `reflectors`, its factor in tau[k]. The update of one step and
// the matrix-vector product of the next share one pass over A.
Tridiagonal tridiagonalise(Panel& A, Panel& reflectors, std::vector<double>& tau) {
  const std::size_t n = A.rows();
  const auto& kernels = dense_kernels();
  Tridiagonal T{std::vector<double>(n), std::vector<double>(n)};
  Panel work(3, n);
  double* v = work.row(0);  // the reflector whose update is pending, with w
  double* w = work.row(1);
  double* p = work.row(2);
  for (std::size_t k = 0; k + 1 < n; ++k) {
    // What the pending update makes of column k decides reflector k.
    double* u = reflectors.row(k);
    for (std::size_t j = k + 1; j < n; ++j) u[j] = A(j, k) - (v[k] * w[j] + w[k] * v[j]);
    T.diagonal[k] = A(k, k) - 2.0 * v[k] * w[k];
    const Reflector reflector = make_reflector(u, k + 1, n);
    T.below[k] = reflector.image;
    tau[k] = reflector.tau;
    v[k] = w[k] = 0.0;
    kernels.update_and_multiply(A.row(0), A.stride(), k + 1, n, v, w, u, p);
    const double shift = 0.5 * tau[k] * (tau[k] * inner_product(p, u, n));  // tau^2 can overflow
    for (std::size_t j = k + 1; j < n; ++j) {
      v[j] = u[j];
      w[j] = tau[k] * p[j] - shift * u[j];
    }
  }
  if (n > 0) T.diagonal[n - 1] = A(n - 1, n - 1) - 2.0 * v[n - 1] * w[n - 1];
  return T;
}

// Z = the rows of Q' in reverse order, by applying the reflectors to the identity, last first: each
// touches only the corner that its successors have filled (rows beyond it are orthogonal to it),
// and they go in pairs to save passes.
void form_reversed_q(const Panel& reflectors, const std::vector<double>& tau, Panel& Z) {
  const auto& kernels = dense_kernels();
  const std::size_t n = Z.rows();
  for (std::size_t i = 0; i < n; ++i) Z(n - 1 - i, i) = 1.0;
  std::size_t k = n < 2 ? 0 : n - 1;
  for (; k >= 2; k -= 2) {
    const double* v = reflectors.row(k - 1);
    const double* w = reflectors.row(k - 2);
    const double vw = inner_product(v, w, n);
    kernels.reflect_rows_twice(Z.row(0), Z.stride(), k - 1, n, n + 1 - k, v, tau[k - 1], w,
                               tau[k - 2], vw);
  }
  if (k == 1) kernels.reflect_rows(Z.row(0), Z.stride(), 1, n, n - 1, reflectors.row(0), tau[0]);
}

// Implicit QL on T. Each sweep's rotations are applied to the rows of Z while the next sweep is
// computed.
void diagonalise(Tridiagonal& T, Panel& Z) {
  const std::size_t n = T.diagonal.size();
  double norm = 0.0;
  for (std::size_t i = 0; i < n; ++i) {
    norm = std::max(norm, std::abs(T.diagonal[i]) + std::abs(T.below[i]));
  }
  Panel angles(4, n);  // of the last sweep and of the one under way
  QlSweep last{T.diagonal.data(), T.below.data(), angles.row(0), angles.row(1)};
  QlSweep sweep{T.diagonal.data(), T.below.data(), angles.row(2), angles.row(3)};
  const auto apply_last_and_finish = [&](QlSweep& under_way) {
    if (last.first < last.high) {
      dense_kernels().rotate_rows(Z.row(0), Z.stride(), Z.stride(), last.first, last.high,
                                  last.sines, last.halves, under_way);
    } else {
      finish(under_way);
    }
  };
  for (std::size_t low = 0; low < n; ++low) {
    // Two sweeps an eigenvalue are usual; the limit only keeps the loop finite.
    for (int count = 0; count < 200; ++count) {
      std::size_t high = low;
      while (high + 1 < n && std::abs(T.below[high]) > kNegligible * norm) ++high;
      if (high == low) break;
      start(sweep, low, high);
      apply_last_and_finish(sweep);
      std::swap(last, sweep);
    }
  }
  QlSweep none;
  apply_last_and_finish(none);
}

void sort_rows(const std::vector<double>& d, const Panel& Z, std::span<double> values,
               TensorView<double, 2> vectors) {
  const std::size_t n = d.size();
  std::vector<std::size_t> order(n);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return d[a] > d[b]; });
  for (std::size_t i = 0; i < n; ++i) {
    values[i] = d[order[i]];
    std::copy(Z.row(order[i]), Z.row(order[i]) + n, vectors.row(i));
  }
}

// A power of two that brings the largest entry of A near 1 without rounding.
double scale_of(const Panel& A) {
  double largest = 0.0;
  for (std::size_t i = 0; i < A.rows(); ++i) {
    const Extremes range = extremes(A.row(i), i + 1);
    largest = std::max({largest, range.greatest, -range.least});
  }
  return largest > 0.0 ? std::ldexp(1.0, -std::ilogb(largest)) : 1.0;
}

}  // namespace

void symmetric_eigen_in_place(Panel& A, std::span<double> values, TensorView<double, 2> vectors) {
  const std::size_t n = A.rows();
  KVSPAN_EXPECT(A.cols() == n && values.size() == n && vectors.shape[0] == n,
                "a square matrix, its n values and vectors");
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = i / kPanelAlign * kPanelAlign; j < i; ++j) A(j, i) = A(i, j);
  }
  // The reduction squares entries and needs them in range; the sweeps take |T| near 1 for granted.
  double scale = scale_of(A);
  const bool scaled = scale < 0x1p-200 || scale > 0x1p200;
  if (scaled) {
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t j = 0; j < padded(i + 1); ++j) A.row(i)[j] *= scale;
    }
  }
  Panel reflectors(n, n);
  std::vector<double> tau(n);
  Tridiagonal T = tridiagonalise(A, reflectors, tau);
  if (!scaled) {
    for (double& entry : T.diagonal) entry *= scale;
    for (double& entry : T.below) entry *= scale;
  }
  Panel Z(n, n);
  form_reversed_q(reflectors, tau, Z);
  // QL converges soonest where the entries grow along the diagonal; the reduction tends to leave
  // them falling, so the sweeps run from its far end (about 3/4 n^2 rotations instead of 1.2 n^2).
  std::reverse(T.diagonal.begin(), T.diagonal.end());
  if (n > 0) std::reverse(T.below.begin(), T.below.end() - 1);
  diagonalise(T, Z);
  for (double& value : T.diagonal) value /= scale;
  sort_rows(T.diagonal, Z, values, vectors);
}

}  // namespace detail

Result<SymmetricEigen> symmetric_eigen(MatrixViewD G) {
  const std::size_t n = G.shape[0];
  KVSPAN_EXPECT(G.shape[1] == n, "a symmetric matrix is square");
  detail::Panel A(n, n);
  for (std::size_t i = 0; i < n; ++i) std::copy(G.row(i), G.row(i) + i + 1, A.row(i));
  KVSPAN_CHECK_OK(check_finite(A.view(), "symmetric matrix"));
  SymmetricEigen result{std::vector<double>(n), MatrixD(n, n)};
  detail::symmetric_eigen_in_place(A, result.values, result.vectors.mutable_view());
  return result;
}

}  // namespace kvspan
