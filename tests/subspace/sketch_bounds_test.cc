// SPDX-License-Identifier: Apache-2.0
// 0 <= A'A - S'S <= Delta I, Delta <= |A - A_k|_F^2 / (l - k), and the
// certificate |A (I - P_r)|_op^2 <= s_{r+1}(S)^2 + Delta.
#include <gtest/gtest.h>

#include "subspace/frequent_directions.h"
#include "tests/linalg/eigen_oracle.h"
#include "tests/subspace/streams.h"

namespace kvspan {
namespace {

std::unique_ptr<FrequentDirections> sketch_of(MatrixView rows, std::size_t l) {
  auto tracker = FrequentDirections::create(rows.shape[1], {.sketch_rows = l}, nullptr);
  EXPECT_TRUE(tracker->get()->update(rows));
  return std::move(tracker).value();
}

// The oracle itself is exact to a small multiple of 2^-52 |A|^2.
double oracle_error(const MatrixD& A) {
  return 100.0 * static_cast<double>(A.rows() + A.cols()) * 0x1p-52 * squared_norm(A);
}

void expect_theorem(const FrequentDirections& sketch, const MatrixD& A, std::size_t l,
                    const std::string& name) {
  const MatrixD S = dense(sketch.sketch());
  const double noise = oracle_error(A) + sketch.drift();
  const std::vector<double> difference =
      symmetric_eigenvalues(sum(product(transposed(A), A), -1.0, product(transposed(S), S)));
  EXPECT_GE(difference.front(), -noise) << name;
  EXPECT_LE(difference.back(), sketch.delta() + noise) << name;
  // Rounding is a footnote: each shrink adds at most 2 2^-24 |S||S|_F.
  EXPECT_LE(sketch.drift(), 1e-6 * static_cast<double>(A.rows()) * squared_norm(A)) << name;

  double tail = squared_norm(A);
  const std::vector<double> squared = squared_singular_values(A);
  for (std::size_t k = 0; k < l; ++k) {
    // |A - A_k|_F^2 loses one squared singular value at a time. Each of the shrinks may find its
    // amount moved by the drift so far.
    const double share = tail / static_cast<double>(l - k);
    EXPECT_LE(sketch.delta(), share + static_cast<double>(A.rows()) * noise) << name << " k=" << k;
    if (k < squared.size()) tail -= squared[k];
  }
}

void expect_certificates(const FrequentDirections& sketch, const MatrixD& A,
                         const std::string& name) {
  for (std::size_t r = 0; r <= sketch.dim(); r += 1 + sketch.dim() / 5) {
    const SubspaceCertificate certificate = sketch.certificate(r);
    EXPECT_LE(left_out(A, sketch.basis(r).rows.view()), certificate.bound() + oracle_error(A))
        << name << " r=" << r;
    EXPECT_EQ(certificate.delta, sketch.delta());
    const double noise = sketch.drift() + 1e-5 * squared_norm(A);
    EXPECT_LE(certificate.rounding, noise) << name << " r=" << r;
  }
}

TEST(SketchBounds, BoundsAndCertificatesHoldOnEveryStream) {
  const std::pair<std::size_t, std::size_t> shapes[] = {{150, 5}, {90, 16}, {220, 24}, {60, 40}};
  for (const auto& [n, d] : shapes) {
    for (const Stream& stream : all_streams(n, d, n + d)) {
      const MatrixD A = dense(stream.rows.view());
      for (const std::size_t l : {std::size_t{1}, std::size_t{3}, d / 2, d}) {
        const auto sketch = sketch_of(stream.rows.view(), std::min(l, d));
        const std::string name = stream.name + " l=" + std::to_string(l);
        expect_theorem(*sketch, A, l, name);
        expect_certificates(*sketch, A, name);
      }
    }
  }
}

TEST(SketchBounds, MergedSketchesKeepTheBound) {
  for (const Stream& stream : all_streams(240, 20, 3)) {
    const std::size_t d = stream.rows.cols(), n = stream.rows.rows();
    const MatrixD A = dense(stream.rows.view());
    const std::size_t l = std::min<std::size_t>(8, d);
    // Three parts of uneven length, merged as a tree: (a, (b, c)).
    const std::size_t first = n / 7, second = n / 2;
    const auto part = [&](std::size_t from, std::size_t to) {
      return sketch_of(MatrixView(stream.rows.row(from), {to - from, d}), l);
    };
    auto a = part(0, first), b = part(first, second), c = part(second, n);
    ASSERT_TRUE(b->merge(*c));
    ASSERT_TRUE(a->merge(*b));
    EXPECT_EQ(a->rows_seen(), n);
    EXPECT_NEAR(a->energy(), squared_norm(A), oracle_error(A));
    expect_theorem(*a, A, l, stream.name);
    expect_certificates(*a, A, stream.name);
  }
}

TEST(SketchBounds, WeightedRowsAreRowsTimesTheRootOfTheirWeight) {
  for (const Stream& stream : all_streams(120, 18, 4)) {
    Random random(5);
    std::vector<float> weights(stream.rows.rows());
    for (float& w : weights) w = static_cast<float>(random.uniform() * 3.0);
    for (std::size_t i = 0; i < weights.size(); i += 11) weights[i] = 0.0f;
    const std::size_t l = std::min<std::size_t>(7, stream.rows.cols());
    auto sketch = FrequentDirections::create(stream.rows.cols(), {.sketch_rows = l}, nullptr);
    ASSERT_TRUE(sketch->get()->update(stream.rows.view(), weights));
    const MatrixD A = dense(stream.rows.view(), weights);
    expect_theorem(**sketch, A, l, stream.name);
    expect_certificates(**sketch, A, stream.name);
  }
}

}  // namespace
}  // namespace kvspan
