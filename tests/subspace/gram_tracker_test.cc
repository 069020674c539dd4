// SPDX-License-Identifier: Apache-2.0
#include "subspace/gram_tracker.h"

#include <gtest/gtest.h>

#include <cmath>

#include "linalg/subspaces.h"
#include "tests/linalg/eigen_oracle.h"
#include "tests/subspace/streams.h"

namespace kvspan {
namespace {

std::unique_ptr<GramTracker> make(std::size_t d, const GramOptions& options = {},
                                  std::shared_ptr<Ledger> ledger = nullptr) {
  return GramTracker::create(d, options, std::move(ledger)).value();
}

// Rows times the root of what decay and weight leave of them.
MatrixD decayed(const Matrix& rows, std::span<const float> weights, double decay) {
  MatrixD A = dense(rows.view(), weights);
  for (std::size_t i = 0; i < A.rows(); ++i) {
    const double root = std::sqrt(std::pow(decay, static_cast<double>(A.rows() - 1 - i)));
    for (std::size_t j = 0; j < A.cols(); ++j) A(i, j) *= root;
  }
  return A;
}

std::vector<float> random_weights(std::size_t n, std::uint64_t seed) {
  Random random(seed);
  std::vector<float> weights(n);
  for (float& w : weights) w = static_cast<float>(2.0 * random.uniform());
  return weights;
}

// n terms in f64, each with a handful of roundings.
double noise_of(const MatrixD& A) {
  return static_cast<double>(A.rows() + 100) * 0x1p-52 * squared_norm(A);
}

TEST(GramTracker, HoldsTheDecayedWeightedGram) {
  for (const std::size_t d : {1u, 7u, 8u, 19u}) {
    for (const double decay : {1.0, 0.99, 0.5, 0.01}) {
      for (const Stream& stream : all_streams(90, d, d)) {
        const auto weights = random_weights(stream.rows.rows(), d);
        auto tracker = make(stream.rows.cols(), {.decay = decay});
        ASSERT_TRUE(tracker->update(stream.rows.view(), weights));
        const MatrixD A = decayed(stream.rows, weights, decay);
        const MatrixD expected = product(transposed(A), A);
        const MatrixD G = tracker->gram();
        const double bound = noise_of(A);
        for (std::size_t i = 0; i < G.rows(); ++i) {
          for (std::size_t j = 0; j < G.cols(); ++j) {
            ASSERT_NEAR(G(i, j), expected(i, j), bound) << stream.name << " decay " << decay;
          }
        }
        EXPECT_NEAR(tracker->energy(), squared_norm(A), bound) << stream.name;
      }
    }
  }
}

TEST(GramTracker, CentredHoldsTheScatterAboutTheMean) {
  Random random(3);
  Matrix rows = falling_rows(200, 12, 0.8, random);
  const auto weights = random_weights(200, 4);
  for (std::size_t i = 0; i < 200; ++i) {
    for (std::size_t j = 0; j < 12; ++j) rows(i, j) += 5.0f + static_cast<float>(j);
  }
  for (const double decay : {1.0, 0.97}) {
    auto tracker = make(12, {.decay = decay, .centred = true});
    ASSERT_TRUE(tracker->update(rows.view(), weights));
    std::vector<double> mean(12);
    double total = 0.0;
    const MatrixD A = dense(rows.view());
    std::vector<double> w(200);
    for (std::size_t i = 0; i < 200; ++i) {
      w[i] = weights[i] * std::pow(decay, static_cast<double>(199 - i));
      for (std::size_t j = 0; j < 12; ++j) mean[j] += w[i] * A(i, j);
      total += w[i];
    }
    for (double& m : mean) m /= total;
    MatrixD centred = A;  // rows off the mean, times the root of their weight
    for (std::size_t i = 0; i < 200; ++i) {
      for (std::size_t j = 0; j < 12; ++j) centred(i, j) = std::sqrt(w[i]) * (A(i, j) - mean[j]);
    }
    const MatrixD scatter = product(transposed(centred), centred);
    EXPECT_NEAR(tracker->weight(), total, 1e-12 * total);
    const MatrixD G = tracker->gram();
    const double bound = 1e-11 * tracker->energy();
    for (std::size_t i = 0; i < 12; ++i) {
      EXPECT_NEAR(tracker->mean()[i], mean[i], 1e-12 * 20.0);
      for (std::size_t j = 0; j < 12; ++j) {
        EXPECT_NEAR(G(i, j), scatter(i, j), bound);
      }
    }
  }
}

TEST(GramTracker, CentredConstantRowsHaveNoDirection) {
  Random random(5);
  const Matrix pattern = gaussian_rows(1, 9, random);
  auto tracker = make(9, {.centred = true});
  for (int i = 0; i < 300; ++i) ASSERT_TRUE(tracker->update(pattern.view()));
  const Basis basis = tracker->basis(4);
  EXPECT_EQ(basis.squared, std::vector<double>(4, 0.0));
  EXPECT_LE(orthonormality_defect(basis.rows.view()), 1e-6);
  for (std::size_t j = 0; j < 9; ++j) EXPECT_NEAR(tracker->mean()[j], pattern(0, j), 1e-12);
}

TEST(GramTracker, TheBasisIsTheBestAndTheCertificateTight) {
  for (const Stream& stream : all_streams(80, 14, 6)) {
    const std::size_t d = stream.rows.cols();
    auto tracker = make(d);
    ASSERT_TRUE(tracker->update(stream.rows.view()));
    const MatrixD A = dense(stream.rows.view());
    const std::vector<double> squared = squared_singular_values(A);
    for (const std::size_t r : {std::size_t{0}, std::size_t{2}, d / 2, d}) {
      const double lost = left_out(A, tracker->basis(r).rows.view());
      const SubspaceCertificate certificate = tracker->certificate(r);
      const double best = r < squared.size() ? squared[r] : 0.0;
      EXPECT_LE(lost, certificate.bound() + noise_of(A)) << stream.name;
      // No more above the optimum than f32 makes of it: 2 sqrt(r) 2^-24 of |A| in the root.
      const double most = std::sqrt(best) + 2e-6 * std::sqrt(squared[0]);
      EXPECT_LE(certificate.bound(), most * most + noise_of(A)) << stream.name;
    }
  }
}

TEST(GramTracker, RowByRowIsTheSameAsInBlocks) {
  for (const double decay : {1.0, 0.9, 0.25}) {
    for (const Stream& stream : all_streams(130, 10, 7)) {
      const std::size_t d = stream.rows.cols(), n = stream.rows.rows();
      const GramOptions options{.decay = decay, .centred = true};
      const auto weights = random_weights(n, 8);
      auto whole = make(d, options), single = make(d, options);
      ASSERT_TRUE(whole->update(stream.rows.view(), weights));
      for (std::size_t i = 0; i < n; ++i) {
        ASSERT_TRUE(single->update(MatrixView(stream.rows.row(i), {1, d}), {&weights[i], 1}));
      }
      EXPECT_EQ(whole->save(), single->save()) << stream.name << " decay " << decay;
    }
  }
}

TEST(GramTracker, MergingAddsTheStreams) {
  Random random(9);
  const Matrix A = falling_rows(100, 11, 0.8, random), B = falling_rows(40, 11, 0.7, random);
  auto both = make(11, {.centred = true}), first = make(11, {.centred = true}),
       second = make(11, {.centred = true});
  ASSERT_TRUE(both->update(A.view()));
  ASSERT_TRUE(both->update(B.view()));
  ASSERT_TRUE(first->update(A.view()));
  ASSERT_TRUE(second->update(B.view()));
  ASSERT_TRUE(first->merge(*second));
  const MatrixD expected = both->gram(), found = first->gram();
  for (std::size_t i = 0; i < 121; ++i) {
    EXPECT_NEAR(found.data()[i], expected.data()[i], 1e-12 * both->energy());
  }
  EXPECT_EQ(first->rows_seen(), 140u);
  // Decayed: each stream as it stands now.
  auto decayed_first = make(11, {.decay = 0.5}), decayed_second = make(11, {.decay = 0.5});
  ASSERT_TRUE(decayed_first->update(A.view()));
  ASSERT_TRUE(decayed_second->update(B.view()));
  const double sum = decayed_first->gram()(3, 2) + decayed_second->gram()(3, 2);
  ASSERT_TRUE(decayed_first->merge(*decayed_second));
  EXPECT_NEAR(decayed_first->gram()(3, 2), sum, 1e-14 * decayed_first->energy());
  EXPECT_FALSE(decayed_first->merge(*second));
}

TEST(GramTracker, BytesAreWhatTheLedgerCounts) {
  auto ledger = std::make_shared<Ledger>();
  const auto tracker = make(64, {.centred = true}, ledger);
  // 8 strips of 8 rows: 64 (1 + 2 + ... + 8) values, and the sum.
  EXPECT_EQ(tracker->bytes(), (64u * 36 + 64) * 8);
  EXPECT_EQ(ledger->bytes(MemoryKind::kSketches), tracker->bytes());
}

TEST(GramTracker, OptionsOutOfRangeAreNamed) {
  EXPECT_EQ(GramTracker::create(8, {.decay = 1.5}, nullptr).error().message,
            "gram: decay 1.5; 0.001 to 1 is allowed");
  EXPECT_FALSE(GramTracker::create(8, {.decay = std::nan("")}, nullptr));
}

}  // namespace
}  // namespace kvspan
