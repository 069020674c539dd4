// SPDX-License-Identifier: Apache-2.0
#include "subspace/oja.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "linalg/qr.h"
#include "linalg/subspaces.h"
#include "subspace/frequent_directions.h"
#include "tests/linalg/eigen_oracle.h"
#include "tests/subspace/streams.h"

namespace kvspan {
namespace {

std::unique_ptr<OjaTracker> make(std::size_t d, const OjaOptions& options,
                                 std::optional<MatrixView> start = std::nullopt) {
  return OjaTracker::create(d, options, start, nullptr).value();
}

// Rows with energy 4 in each of the first `strong` rows of `frame` and 0.04 elsewhere.
Matrix spiked_rows(std::size_t n, const Matrix& frame, std::size_t strong, Random& random) {
  const std::size_t d = frame.cols();
  Matrix rows(n, d);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t t = 0; t < d; ++t) {
      const double share = (t < strong ? 2.0 : 0.2) * random.normal();
      for (std::size_t j = 0; j < d; ++j) rows(i, j) += static_cast<float>(share * frame(t, j));
    }
  }
  return rows;
}

TEST(Oja, OneStepIsAlgorithmOne) {
  // U <- U + eta (K - U K~) K~', K~ = U'K, then QR; K and U as columns, in f64 by Eigen.
  Random random(1);
  const std::size_t d = 14, r = 4, m = 9;
  const Matrix start = *orthonormal_rows(gaussian_rows(r, d, random).view());
  const Matrix X = gaussian_rows(m, d, random);
  auto tracker =
      make(d, {.rank = r, .eta = 0.3, .norm = OjaNorm::kNone, .batch_rows = m}, start.view());
  ASSERT_TRUE(tracker->update(X.view()));
  const MatrixD U = transposed(dense(start.view())), K = transposed(dense(X.view()));
  const MatrixD coefficients = product(transposed(U), K);
  const MatrixD residual = sum(K, -1.0, product(U, coefficients));
  const auto [Q, R] = householder_qr(sum(U, 0.3, product(residual, transposed(coefficients))));
  const Basis basis = tracker->basis(r);
  // Same columns up to the sign of R's diagonal. The start is orthonormal to 2^-24 only, which the
  // two formulas weigh differently, times the size of the step (|K|^2 is about m d).
  for (std::size_t i = 0; i < r; ++i) {
    const double sign = R(i, i) < 0 ? -1.0 : 1.0;
    for (std::size_t j = 0; j < d; ++j) EXPECT_NEAR(basis.rows(i, j), sign * Q(j, i), 1e-5);
  }
}

TEST(Oja, ConvergesToTheTopSubspaceOfAStationaryStream) {
  Random random(2);
  const std::size_t d = 32, r = 4;
  const Matrix frame = *orthonormal_rows(gaussian_rows(d, d, random).view());
  for (const OjaNorm norm : {OjaNorm::kToken, OjaNorm::kBatch, OjaNorm::kNone}) {
    // |x|^2 is about 17, so eta of the unnormalised rule is smaller by that.
    const double eta = norm == OjaNorm::kNone ? 0.0005 : 0.01;
    auto tracker = make(d, {.rank = r, .eta = eta, .norm = norm, .batch_rows = 32});
    ASSERT_TRUE(tracker->update(spiked_rows(20000, frame, r, random).view()));
    const auto angles = principal_angles(tracker->basis(r).rows.view(), frame.top(r));
    EXPECT_LT(angles.back(), 0.05) << "norm " << static_cast<int>(norm);
    const auto start = make(d, {.rank = r});
    EXPECT_GT(principal_angles(start->basis(r).rows.view(), frame.top(r)).back(), 0.8);
  }
}

TEST(Oja, FollowsARotatingSubspaceWhereASketchLagsBehind) {
  Random random(3);
  const std::size_t d = 24, r = 2;
  const Matrix frame = *orthonormal_rows(gaussian_rows(d, d, random).view());
  auto tracker = make(d, {.rank = r, .eta = 0.05, .norm = OjaNorm::kBatch, .batch_rows = 32});
  auto sketch = FrequentDirections::create(d, {.sketch_rows = 8}, nullptr);
  constexpr int kBlocks = 200;
  Matrix turned = frame;
  for (int block = 0; block < kBlocks; ++block) {
    // The plane turns by a right angle in all, from rows 0 and 1 of the frame to rows 2 and 3.
    const double angle = std::numbers::pi / 2 * block / kBlocks;
    for (std::size_t j = 0; j < d; ++j) {
      for (std::size_t t = 0; t < 2; ++t) {
        turned(t, j) =
            static_cast<float>(std::cos(angle) * frame(t, j) + std::sin(angle) * frame(t + 2, j));
        turned(t + 2, j) =
            static_cast<float>(std::cos(angle) * frame(t + 2, j) - std::sin(angle) * frame(t, j));
      }
    }
    const Matrix rows = spiked_rows(64, turned, r, random);
    ASSERT_TRUE(tracker->update(rows.view()));
    ASSERT_TRUE((*sketch)->update(rows.view()));
    if (block > 20) {
      // It lags by a few batches of pi/800 each.
      EXPECT_LT(principal_angles(tracker->basis(r).rows.view(), turned.top(r)).back(), 0.15)
          << "block " << block;
    }
  }
  EXPECT_GT(principal_angles((*sketch)->basis(r).rows.view(), turned.top(r)).back(), 0.3);
}

TEST(Oja, TheStepDoesNotDependOnActivationScaleWithANorm) {
  Random random(4);
  const Matrix rows = falling_rows(320, 16, 0.8, random);
  for (const OjaNorm norm : {OjaNorm::kToken, OjaNorm::kBatch, OjaNorm::kNone}) {
    const OjaOptions options{.rank = 4, .eta = 0.02, .norm = norm, .batch_rows = 32};
    auto plain = make(16, options), scaled = make(16, options);
    Matrix louder = rows;
    scale_rows(louder, [](std::size_t) { return 1024.0; });  // a power of two: exact
    ASSERT_TRUE(plain->update(rows.view()));
    ASSERT_TRUE(scaled->update(louder.view()));
    const bool same = plain->basis(4).rows == scaled->basis(4).rows;
    EXPECT_EQ(same, norm != OjaNorm::kNone);
  }
  // Per token: every row at a scale of its own.
  const OjaOptions options{.rank = 4, .eta = 0.02, .norm = OjaNorm::kToken, .batch_rows = 32};
  auto plain = make(16, options), scaled = make(16, options);
  Matrix uneven = rows;
  scale_rows(uneven, [](std::size_t i) { return std::ldexp(1.0, int(i % 13) - 6); });
  ASSERT_TRUE(plain->update(rows.view()));
  ASSERT_TRUE(scaled->update(uneven.view()));
  const auto angles = principal_angles(plain->basis(4).rows.view(), scaled->basis(4).rows.view());
  EXPECT_LT(angles.back(), 1e-6);
}

TEST(Oja, RowByRowIsTheSameAsInBlocks) {
  for (const Stream& stream : all_streams(75, 10, 5)) {
    const std::size_t d = stream.rows.cols(), n = stream.rows.rows();
    const OjaOptions options{.rank = 3, .eta = 0.05, .batch_rows = 8};
    auto whole = make(d, options), single = make(d, options), uneven = make(d, options);
    ASSERT_TRUE(whole->update(stream.rows.view()));
    for (std::size_t i = 0; i < n; ++i) {
      ASSERT_TRUE(single->update(MatrixView(stream.rows.row(i), {1, d})));
    }
    for (std::size_t at = 0, step = 1; at < n; at += step, step += 4) {
      ASSERT_TRUE(uneven->update(MatrixView(stream.rows.row(at), {std::min(step, n - at), d})));
    }
    EXPECT_EQ(whole->save(), single->save()) << stream.name;
    EXPECT_EQ(whole->save(), uneven->save()) << stream.name;
  }
}

TEST(Oja, GatheredRowsCountAsIfFlushed) {
  Random random(6);
  const Matrix rows = gaussian_rows(37, 12, random);
  auto tracker = make(12, {.rank = 3, .eta = 0.1, .batch_rows = 32});
  ASSERT_TRUE(tracker->update(rows.view()));
  const auto before = tracker->save();
  const Basis expected = tracker->basis(3);
  const auto spectrum = tracker->spectrum();
  EXPECT_EQ(tracker->save(), before);
  tracker->flush();
  EXPECT_NE(tracker->save(), before);
  EXPECT_EQ(tracker->basis(3).rows, expected.rows);
  EXPECT_EQ(tracker->spectrum(), spectrum);
  // Without a batch size each call is one step.
  auto direct = make(12, {.rank = 3, .eta = 0.1, .batch_rows = 0});
  ASSERT_TRUE(direct->update(rows.top(32)));
  ASSERT_TRUE(direct->update(MatrixView(rows.row(32), {5, 12})));
  EXPECT_EQ(direct->basis(3).rows, expected.rows);
}

TEST(Oja, WeightsScaleTheirRowsPull) {
  Random random(7);
  const Matrix rows = gaussian_rows(16, 8, random);
  Matrix stronger = rows;
  std::vector<float> weights(16, 1.0f);
  for (std::size_t i = 0; i < 16; i += 3) weights[i] = 4.0f;
  scale_rows(stronger, [&](std::size_t i) { return std::sqrt(weights[i]); });
  const OjaOptions options{.rank = 2, .eta = 0.1, .norm = OjaNorm::kNone, .batch_rows = 16};
  auto weighted = make(8, options), scaled = make(8, options);
  ASSERT_TRUE(weighted->update(rows.view(), weights));
  ASSERT_TRUE(scaled->update(stronger.view()));
  EXPECT_EQ(weighted->basis(2).rows, scaled->basis(2).rows);
  EXPECT_NEAR(weighted->energy(), scaled->energy(), 1e-12 * scaled->energy());
  const std::vector<float> none(16, 0.0f);
  const auto basis = weighted->basis(2).rows;
  ASSERT_TRUE(weighted->update(rows.view(), none));
  EXPECT_LT(principal_angles(weighted->basis(2).rows.view(), basis.view()).back(), 1e-6);
}

TEST(Oja, LeadingDirectionsAreOrderedByTheMoments) {
  Random random(8);
  const std::size_t d = 20;
  const Matrix frame = *orthonormal_rows(gaussian_rows(d, d, random).view());
  auto tracker = make(d, {.rank = 6, .eta = 0.02, .batch_rows = 32});
  ASSERT_TRUE(tracker->update(spiked_rows(20000, frame, 2, random).view()));
  EXPECT_LT(principal_angles(tracker->basis(2).rows.view(), frame.top(2)).back(), 0.05);
  const auto spectrum = tracker->spectrum();
  ASSERT_EQ(spectrum.size(), d);
  // 20000 rows of energy 4 in two directions, 0.04 in the rest. Each turn of the basis loses sight
  // of the squared sine of its angle, so the moments fall short, never long (but for sampling: 3
  // standard deviations of a sum of 20000 squares are 3 %).
  for (const double share : {spectrum[0] / 80000.0, spectrum[1] / 80000.0}) {
    EXPECT_LT(share, 1.03);
    EXPECT_GT(share, 0.7);
  }
  EXPECT_LT(spectrum[2], 0.05 * spectrum[1]);
  EXPECT_EQ(spectrum[6], 0.0);
}

TEST(Oja, MergingKeepsTheStrongDirectionsOfBoth) {
  Random random(9);
  const std::size_t d = 16;
  const Matrix frame = *orthonormal_rows(gaussian_rows(d, d, random).view());
  Matrix swapped = frame;  // rows 0, 1 and 2, 3 change places
  for (std::size_t t = 0; t < 4; ++t) std::copy_n(frame.row(t ^ 2), d, swapped.row(t));
  const OjaOptions options{.rank = 4, .eta = 0.02, .batch_rows = 32};
  auto first = make(d, options), second = make(d, options);
  ASSERT_TRUE(first->update(spiked_rows(6000, frame, 2, random).view()));
  ASSERT_TRUE(second->update(spiked_rows(6000, swapped, 2, random).view()));
  EXPECT_LT(principal_angles(first->basis(2).rows.view(), frame.top(2)).back(), 0.1);
  ASSERT_TRUE(first->merge(*second));
  EXPECT_LT(principal_angles(first->basis(4).rows.view(), frame.top(4)).back(), 0.1);
  EXPECT_LE(orthonormality_defect(first->basis(4).rows.view()), 1e-6);
  EXPECT_EQ(first->rows_seen(), 12000u);
  auto other = make(d, {.rank = 3});
  EXPECT_FALSE(first->merge(*other));
  // Two that have seen nothing: the own start stays.
  auto fresh = make(d, options),
       another = make(d, {.rank = 4, .eta = 0.02, .batch_rows = 32, .seed = 9});
  const Matrix start = fresh->basis(4).rows;
  ASSERT_TRUE(fresh->merge(*another));
  EXPECT_LT(principal_angles(fresh->basis(4).rows.view(), start.view()).back(), 1e-5);
}

TEST(Oja, CertificatesNeverClaimTooMuchAndBytesAreCounted) {
  for (const Stream& stream : all_streams(64, 9, 10)) {
    auto ledger = std::make_shared<Ledger>();
    const std::size_t d = stream.rows.cols();
    auto tracker = OjaTracker::create(d, {.rank = 3}, std::nullopt, ledger);
    ASSERT_TRUE((*tracker)->update(stream.rows.view()));
    for (const std::size_t r : {0u, 2u, 3u}) {
      EXPECT_GE((*tracker)->certificate(r).bound(),
                left_out(dense(stream.rows.view()), (*tracker)->basis(r).rows.view()));
    }
    EXPECT_EQ((*tracker)->bytes(), ledger->bytes(MemoryKind::kSketches));
    EXPECT_EQ((*tracker)->bytes(), Buffer::allocated_for(3 * d * 4) + Buffer::allocated_for(72) +
                                       Buffer::allocated_for(32 * d * 4) + 128u);
  }
}

TEST(Oja, OptionsOutOfRangeAreNamed) {
  EXPECT_FALSE(OjaTracker::create(8, {.rank = 0}, std::nullopt, nullptr));
  EXPECT_FALSE(OjaTracker::create(8, {.rank = 4, .eta = -1.0}, std::nullopt, nullptr));
  EXPECT_FALSE(OjaTracker::create(8, {.rank = 4, .eta = std::nan("")}, std::nullopt, nullptr));
  EXPECT_EQ(OjaTracker::create(8, {.rank = 9}, std::nullopt, nullptr).error().message,
            "oja: rank 9; 1 to the dimension 8 are allowed");
}

}  // namespace
}  // namespace kvspan
