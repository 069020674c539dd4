// SPDX-License-Identifier: Apache-2.0
// Queries and keys are stacked as rows, [2n, d], and the basis is made of
// right singular vectors, [r, d]. (OjaKV, appendix A.2, stacks columns and takes left vectors,
// which gives vectors of the wrong length.)
#include <gtest/gtest.h>

#include "linalg/qr.h"
#include "linalg/subspaces.h"
#include "subspace/frequent_directions.h"
#include "subspace/gram_tracker.h"
#include "tests/linalg/eigen_oracle.h"
#include "tests/subspace/streams.h"

namespace kvspan {
namespace {

double frobenius_left_out(const MatrixD& A, MatrixView B) {
  return squared_norm(outside(A, B));
}

TEST(StackedRows, StackedRowsGiveTheRightSingularVectorsOfTheStack) {
  for (const std::size_t d : {8u, 20u}) {
    const auto keys = all_streams(70, d, 11), queries = all_streams(70, d, 12);
    for (std::size_t s = 0; s < keys.size(); ++s) {
      const Matrix& K = keys[s].rows;
      const Matrix& Q = queries[s].rows;
      const std::size_t dim = K.cols(), r = dim / 3;
      const MatrixD stack = stacked(dense(Q.view()), dense(K.view()));

      auto gram = GramTracker::create(dim, {}, nullptr);
      auto sketch = FrequentDirections::create(dim, {.sketch_rows = dim}, nullptr);
      for (Tracker* tracker :
           {static_cast<Tracker*>(gram->get()), static_cast<Tracker*>(sketch->get())}) {
        ASSERT_TRUE(tracker->update(Q.view()));
        ASSERT_TRUE(tracker->update(K.view()));
        const Basis basis = tracker->basis(r);
        ASSERT_EQ(basis.rows.rows(), r);
        ASSERT_EQ(basis.rows.cols(), dim);
        const std::vector<double> squared = squared_singular_values(stack);
        double best = 0.0;
        for (std::size_t i = r; i < squared.size(); ++i) best += squared[i];
        // Eckart-Young: no rank-r projection leaves out less than the tail of the spectrum, and
        // right singular vectors leave out just that. Rounding B turns it by sqrt(r) 2^-24 at most.
        const double turn = 3.0 * std::sqrt(double(r)) * 0x1p-24;
        const double most = std::sqrt(best) + turn * std::sqrt(squared_norm(stack));
        EXPECT_LE(frobenius_left_out(stack, basis.rows.view()), most * most) << keys[s].name;
        // What the sketch ascribes to each direction, and what is there.
        const double noise = 1e-5 * squared_norm(stack);
        for (std::size_t i = 0; i < r; ++i) {
          EXPECT_NEAR(basis.squared[i], squared[i], noise) << keys[s].name;
        }
      }
    }
  }
}

TEST(StackedRows, TheStackServesBothWhereKeysAloneFailTheQueries) {
  // Keys and queries of rank 3 each, in different directions.
  Random random(13);
  const std::size_t d = 16;
  const Matrix frame = *orthonormal_rows(gaussian_rows(6, d, random).view());
  Matrix K(50, d), Q(50, d);
  for (std::size_t i = 0; i < 50; ++i) {
    for (std::size_t t = 0; t < 3; ++t) {
      const double k = random.normal(), q = random.normal();
      for (std::size_t j = 0; j < d; ++j) {
        K(i, j) += static_cast<float>(k * frame(t, j));
        Q(i, j) += static_cast<float>(q * frame(t + 3, j));
      }
    }
  }
  auto alone = GramTracker::create(d, {}, nullptr), both = GramTracker::create(d, {}, nullptr);
  ASSERT_TRUE((*alone)->update(K.view()));
  ASSERT_TRUE((*both)->update(Q.view()));
  ASSERT_TRUE((*both)->update(K.view()));
  const MatrixD queries = dense(Q.view());
  EXPECT_LT(frobenius_left_out(queries, (*both)->basis(6).rows.view()),
            1e-10 * squared_norm(queries));
  EXPECT_GT(frobenius_left_out(queries, (*alone)->basis(3).rows.view()),
            0.9 * squared_norm(queries));
}

}  // namespace
}  // namespace kvspan
