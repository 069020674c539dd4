// SPDX-License-Identifier: Apache-2.0
#include "linalg/svd.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/expect.h"
#include "base/fail.h"
#include "base/random.h"
#include "linalg/batch.h"
#include "linalg/finite.h"
#include "linalg/panel.h"
#include "linalg/qr.h"
#include "linalg/symmetric_eigen.h"

namespace kvspan {
namespace {

using detail::Panel;

void rotate_pair(double* x, double* y, std::size_t count, double cosine, double sine) {
  for (std::size_t j = 0; j < count; ++j) {
    const double a = x[j], b = y[j];
    x[j] = cosine * a - sine * b;
    y[j] = sine * a + cosine * b;
  }
}

// Rotates pairs of rows of Y, and those of J along with them, until all rows of Y are orthogonal
// (Hestenes 1958). Given rows that nearly are, two or three rounds do; the limit only keeps the
// loop finite.
void orthogonalise_rows(Panel& Y, Panel& J) {
  const double small = 0x1p-52 * std::sqrt(static_cast<double>(Y.cols()));
  for (int round = 0; round < 40; ++round) {
    bool turned = false;
    for (std::size_t p = 0; p + 1 < Y.rows(); ++p) {
      for (std::size_t q = p + 1; q < Y.rows(); ++q) {
        const double across = detail::inner_product(Y.row(p), Y.row(q), Y.cols());
        if (across == 0.0) continue;
        const double a = detail::inner_product(Y.row(p), Y.row(p), Y.cols());
        const double b = detail::inner_product(Y.row(q), Y.row(q), Y.cols());
        if (std::abs(across) <= small * std::sqrt(a) * std::sqrt(b)) continue;
        const double ratio = (b - a) / (2.0 * across);
        const double tangent =
            std::copysign(1.0, ratio) / (std::abs(ratio) + std::hypot(1.0, ratio));
        const double cosine = 1.0 / std::sqrt(1.0 + tangent * tangent);
        rotate_pair(Y.row(p), Y.row(q), Y.cols(), cosine, cosine * tangent);
        rotate_pair(J.row(p), J.row(q), J.cols(), cosine, cosine * tangent);
        turned = true;
      }
    }
    if (!turned) return;
  }
}

// B = J' diag(sigma) W for B [k, n], k <= n: J [k, k] and W [k, n] with orthonormal rows.
struct Factors {
  MatrixD J;
  std::vector<double> sigma;
  MatrixD W;
};

// QR first; then the eigenvectors of LL' bring the rows of L close to orthogonal, and rotations the
// rest of the way, to full accuracy.
Factors decompose_wide(MatrixViewD B) {
  const std::size_t k = B.shape[0];
  const detail::ThinLq lq = detail::thin_lq(B);
  Panel G = detail::gram_of_columns(Panel::transposed(lq.L.view()));
  std::vector<double> squared(k);
  MatrixD eigenvectors(k, k);
  detail::symmetric_eigen_in_place(G, squared, eigenvectors.mutable_view());
  Panel J = Panel::of(TensorView<const double, 2>(eigenvectors.view()));
  Panel Y = detail::outer_product(Panel::transposed(eigenvectors.view()), Panel::of(lq.L.view()));
  orthogonalise_rows(Y, J);

  std::vector<double> length(k);
  for (std::size_t i = 0; i < k; ++i) {
    length[i] = std::sqrt(detail::inner_product(Y.row(i), Y.row(i), k));
  }
  std::vector<std::size_t> order(k);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return length[a] > length[b]; });
  Factors factors{MatrixD(k, k), std::vector<double>(k), MatrixD(k, B.shape[1])};
  MatrixD V(k, k);
  for (std::size_t i = 0; i < k; ++i) {
    const std::size_t from = order[i];
    factors.sigma[i] = length[from];
    std::copy(J.row(from), J.row(from) + k, factors.J.row(i));
    // What is below the rounding of the largest has no direction of its own; QR fills one in.
    if (length[from] <= 0x1p-50 * length[order[0]]) continue;
    for (std::size_t j = 0; j < k; ++j) V(i, j) = Y(from, j) / length[from];
  }
  const MatrixD filled = detail::thin_lq(V.view()).Q;
  const Panel W = detail::outer_product(Panel::transposed(filled.view()), Panel::of(lq.Q.view()));
  for (std::size_t i = 0; i < k; ++i) std::copy(W.row(i), W.row(i) + W.cols(), factors.W.row(i));
  return factors;
}

MatrixD widened(MatrixView A, bool transpose) {
  MatrixD B(A.shape[transpose ? 1 : 0], A.shape[transpose ? 0 : 1]);
  for (std::size_t i = 0; i < A.shape[0]; ++i) {
    for (std::size_t j = 0; j < A.shape[1]; ++j) {
      (transpose ? B(j, i) : B(i, j)) = static_cast<double>(A.row(i)[j]);
    }
  }
  return B;
}

Matrix rounded_rows(const MatrixD& M, std::size_t count) {
  Matrix out(count, M.cols());
  std::copy(M.data(), M.data() + count * M.cols(), out.data());
  return out;
}
Matrix rounded_columns(const MatrixD& M, std::size_t count) {
  Matrix out(M.cols(), count);
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t j = 0; j < M.cols(); ++j) out(j, i) = static_cast<float>(M(i, j));
  }
  return out;
}

// Products with A in f64, a block of rows at a time, so that no f64 copy of A is held.
constexpr std::size_t kBlockRows = 256;

// (AX)' as rows [w, m], for X [n, w].
MatrixD product_rows(MatrixView A, const Panel& X) {
  MatrixD Yt(X.cols(), A.shape[0]);
  for (std::size_t at = 0; at < A.shape[0]; at += kBlockRows) {
    const std::size_t count = std::min(kBlockRows, A.shape[0] - at);
    const MatrixView block(A.row(at), {count, A.shape[1]}, A.strides);
    const Panel Y = detail::outer_product(X, Panel::transposed(block));  // [w, count]
    for (std::size_t i = 0; i < X.cols(); ++i)
      std::copy(Y.row(i), Y.row(i) + count, Yt.row(i) + at);
  }
  return Yt;
}

// QA [w, n], for Q [w, m].
Panel product_from_left(MatrixView A, const MatrixD& Q) {
  Panel C(Q.rows(), A.shape[1]);
  for (std::size_t at = 0; at < A.shape[0]; at += kBlockRows) {
    const std::size_t count = std::min(kBlockRows, A.shape[0] - at);
    const Panel block = Panel::of(MatrixView(A.row(at), {count, A.shape[1]}, A.strides));
    const Panel Qt =
        Panel::transposed(MatrixViewD(Q.row(0) + at, {Q.rows(), count}, {Q.cols(), 1}));
    detail::dense_kernels().add_outer(C.row(0), C.stride(), Qt.row(0), Qt.stride(), block.row(0),
                                      block.stride(), detail::padded(C.rows()),
                                      detail::padded(C.cols()), count);
  }
  return C;
}

}  // namespace

Result<Svd> thin_svd(MatrixView A) {
  KVSPAN_CHECK_OK(check_finite(A, "matrix for SVD"));
  const bool tall = A.shape[0] > A.shape[1];
  const std::size_t k = std::min(A.shape[0], A.shape[1]);
  if (k == 0) return Svd{Matrix(A.shape[0], 0), {}, Matrix(0, A.shape[1])};
  Factors f = decompose_wide(widened(A, tall).view());
  return tall ? Svd{rounded_columns(f.W, k), std::move(f.sigma), rounded_rows(f.J, k)}
              : Svd{rounded_columns(f.J, k), std::move(f.sigma), rounded_rows(f.W, k)};
}

Result<Svd> randomized_svd(MatrixView A, std::size_t rank, const RandomizedSvdOptions& options) {
  KVSPAN_CHECK_OK(check_finite(A, "matrix for SVD"));
  const std::size_t smaller = std::min(A.shape[0], A.shape[1]), k = std::min(rank, smaller);
  if (k == 0) return Svd{Matrix(A.shape[0], 0), {}, Matrix(0, A.shape[1])};
  const std::size_t width = std::min(rank + options.oversample, smaller);
  Random random(options.seed);
  Panel X(A.shape[1], width);
  for (std::size_t i = 0; i < X.rows(); ++i) {
    for (std::size_t j = 0; j < width; ++j) X(i, j) = random.normal();
  }
  MatrixD Q = detail::thin_lq(product_rows(A, X).view()).Q;  // [w, m]
  for (int pass = 0; pass < options.power_iterations; ++pass) {
    const MatrixD across = detail::thin_lq(product_from_left(A, Q).view()).Q;  // [w, n]
    Q = detail::thin_lq(product_rows(A, Panel::transposed(across.view())).view()).Q;
  }
  // QA = J' diag(sigma) W, so that A is nearly (JQ)' diag(sigma) W.
  Factors f = decompose_wide(product_from_left(A, Q).view());
  const Panel left = detail::outer_product(Panel::transposed(f.J.view()), Panel::of(Q.view()));
  MatrixD U(width, A.shape[0]);
  for (std::size_t i = 0; i < width; ++i) std::copy(left.row(i), left.row(i) + U.cols(), U.row(i));
  f.sigma.resize(k);
  return Svd{rounded_columns(U, k), std::move(f.sigma), rounded_rows(f.W, k)};
}

void thin_svd_batch(std::span<const MatrixView> matrices, std::span<Result<Svd>> out, Team& team) {
  KVSPAN_EXPECT(matrices.size() == out.size(), "one result per matrix");
  share_out(team, matrices.size(), [&](std::size_t i) { out[i] = thin_svd(matrices[i]); });
}

}  // namespace kvspan
