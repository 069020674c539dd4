// SPDX-License-Identifier: Apache-2.0
#include "subspace/frequent_directions.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "linalg/subspaces.h"
#include "tests/linalg/eigen_oracle.h"
#include "tests/subspace/fixture.h"
#include "tests/subspace/streams.h"

namespace kvspan {
namespace {

std::unique_ptr<FrequentDirections> make(std::size_t d, std::size_t l,
                                         std::shared_ptr<Ledger> ledger = nullptr) {
  return FrequentDirections::create(d, {.sketch_rows = l}, std::move(ledger)).value();
}

// The fixtures hold streams and what an implementation on numpy's SVD, in f64, makes of them.
TEST(FrequentDirections, AgreeWithNumpyOnDeltaSpectrumSubspaceAndBound) {
  const auto fixture = read_fixture("frequent_directions.fixture");
  std::size_t cases = 0;
  for (const auto& [key, rows] : fixture) {
    if (!key.ends_with("/rows")) continue;
    ++cases;
    const std::string name = key.substr(0, key.size() - 5);
    const auto& values = [&](const char* what) -> const std::vector<double>& {
      return fixture.at(name + "/" + what).values;
    };
    const auto l = static_cast<std::size_t>(values("l_r")[0]);
    const auto r = static_cast<std::size_t>(values("l_r")[1]);
    const Matrix A = rows.matrix();
    std::vector<float> weights;
    if (fixture.contains(name + "/weights")) {
      for (const double w : values("weights")) weights.push_back(static_cast<float>(w));
    }
    auto tracker = make(A.cols(), l);
    ASSERT_TRUE(tracker->update(A.view(), weights));

    // Our sketch is rounded to f32 at each shrink, which moves its Gram by at most drift() in all.
    // Every later amount moves by no more than that (Weyl), so Delta by shrinks * drift.
    const double delta = values("delta_shrinks")[0], shrinks = values("delta_shrinks")[1];
    const double drift = tracker->drift();
    EXPECT_NEAR(tracker->delta(), delta, shrinks * drift + 1e-13 * values("squared")[0]) << name;
    EXPECT_LE(shrinks * drift, 5e-4 * values("squared")[0]) << name << ": tolerance says nothing";

    const auto& squared = values("sketch_squared");
    const std::vector<double> found = tracker->spectrum();
    for (std::size_t i = 0; i < std::min(squared.size(), found.size()); ++i) {
      EXPECT_NEAR(found[i], squared[i], (shrinks + 1) * drift + 1e-12 * squared[0]) << name;
    }

    // Davis-Kahan: the angle is at most the change over the gap.
    const double gap = squared[r - 1] - (r < squared.size() ? squared[r] : 0.0);
    const Basis basis = tracker->basis(r);
    const auto angles =
        principal_angles(basis.rows.view(), fixture.at(name + "/basis").matrix().view());
    EXPECT_LE(std::sin(angles.back()), (shrinks + 1) * drift / gap + 1e-6) << name;

    const double lost = values("lost")[0];
    EXPECT_GE(tracker->certificate(r).bound(), lost) << name;
    EXPECT_NEAR(
        left_out(weights.empty() ? dense(A.view()) : dense(A.view(), weights), basis.rows.view()),
        lost, 1e-3 * lost + 1e-12 * values("squared")[0])
        << name;
  }
  EXPECT_EQ(cases, 9u);
}

TEST(FrequentDirections, RowByRowIsTheSameAsInBlocks) {
  for (const Stream& stream : all_streams(150, 12, 2)) {
    const std::size_t d = stream.rows.cols(), n = stream.rows.rows();
    const std::size_t l = std::min<std::size_t>(5, d);
    auto whole = make(d, l), single = make(d, l), uneven = make(d, l);
    ASSERT_TRUE(whole->update(stream.rows.view()));
    for (std::size_t i = 0; i < n; ++i) {
      ASSERT_TRUE(single->update(MatrixView(stream.rows.row(i), {1, d})));
    }
    for (std::size_t at = 0, step = 1; at < n; at += step, step = step * 2 + 1) {
      const std::size_t count = std::min(step, n - at);
      ASSERT_TRUE(uneven->update(MatrixView(stream.rows.row(at), {count, d})));
    }
    EXPECT_EQ(whole->save(), single->save()) << stream.name;
    EXPECT_EQ(whole->save(), uneven->save()) << stream.name;
  }
}

TEST(FrequentDirections, RowsNotShrunkYetCount) {
  Random random(3);
  const Matrix A = gaussian_rows(8, 20, random);
  auto tracker = make(20, 4);
  for (std::size_t n = 0; n <= 8; ++n) {
    // Up to 2l rows nothing is lost: the basis is that of the rows themselves.
    EXPECT_EQ(tracker->delta(), 0.0);
    const MatrixD seen = dense(A.top(n));
    for (std::size_t r = 0; r <= 8; ++r) {
      const Basis basis = tracker->basis(r);
      const double best = r < n ? squared_singular_values(seen)[r] : 0.0;
      EXPECT_NEAR(left_out(seen, basis.rows.view()), best, 1e-5) << n << " rows, rank " << r;
      EXPECT_NEAR(tracker->certificate(r).bound(), best, 1e-5 * std::max(1.0, best) * 8);
      EXPECT_LE(orthonormality_defect(basis.rows.view()), 1e-6);
      for (std::size_t i = 0; i < r; ++i) EXPECT_EQ(basis.squared[i] > 0.0, i < n);
    }
    if (n < 8) {
      ASSERT_TRUE(tracker->update(MatrixView(A.row(n), {1, 20})));
    }
  }
}

TEST(FrequentDirections, AnEmptySketchHasABasisAndProvesZero) {
  const auto tracker = make(6, 3);
  EXPECT_LE(orthonormality_defect(tracker->basis(6).rows.view()), 1e-7);
  EXPECT_EQ(tracker->certificate(0).bound(), 0.0);
  EXPECT_EQ(tracker->spectrum(), std::vector<double>(6, 0.0));
}

TEST(FrequentDirections, BytesAreWhatTheLedgerCounts) {
  auto ledger = std::make_shared<Ledger>();
  {
    auto tracker = make(64, 32, ledger);
    EXPECT_EQ(tracker->bytes(), 2u * 32 * 64 * 4);
    EXPECT_EQ(ledger->bytes(MemoryKind::kSketches), tracker->bytes());
    const auto copy = tracker->clone(ledger);
    EXPECT_EQ(ledger->bytes(MemoryKind::kSketches), 2 * tracker->bytes());
    Random random(4);
    ASSERT_TRUE(tracker->update(gaussian_rows(200, 64, random).view()));
    EXPECT_EQ(ledger->bytes(MemoryKind::kSketches), 2 * tracker->bytes());
  }
  EXPECT_EQ(ledger->total(), 0u);
}

TEST(FrequentDirections, RefuseWhatIsNotFiniteAndStayAsTheyWere) {
  Random random(5);
  Matrix A = gaussian_rows(30, 10, random);
  auto tracker = make(10, 4);
  ASSERT_TRUE(tracker->update(A.view()));
  const auto before = tracker->save();
  const auto expect_refused = [&](const std::string& place, std::span<const float> weights = {}) {
    const Status status = tracker->update(A.view(), weights);
    ASSERT_FALSE(status);
    EXPECT_NE(status.error().message.find(place), std::string::npos) << status.error().message;
    EXPECT_EQ(tracker->save(), before);
  };
  A(17, 6) = std::numeric_limits<float>::quiet_NaN();
  expect_refused("row 17, column 6");
  A(17, 6) = -2e30f;
  expect_refused("row 17, column 6");
  A(17, 6) = 0.0f;
  std::vector<float> weights(30, 1.0f);
  weights[3] = -0.5f;
  expect_refused("row 3", weights);
  weights[3] = std::numeric_limits<float>::infinity();
  expect_refused("row 3", weights);
  weights[3] = 3e38f;
  A(3, 2) = 1e20f;
  expect_refused("row 3, column 2", weights);
}

TEST(FrequentDirections, SurviveTheLargestAndSmallestEntries) {
  for (const double scale : {1e-38, 1e-30, 1e29}) {
    Random random(6);
    Matrix A = falling_rows(400, 12, 0.8, random);
    scale_rows(A, [&](std::size_t) { return scale; });
    auto tracker = make(12, 4);
    ASSERT_TRUE(tracker->update(A.view()));
    const Basis basis = tracker->basis(4);
    EXPECT_LE(orthonormality_defect(basis.rows.view()), 1e-6);
    EXPECT_TRUE(std::isfinite(tracker->certificate(4).bound()));
    EXPECT_GT(basis.squared[3], 0.0);
    EXPECT_GE(tracker->certificate(4).bound(), left_out(dense(A.view()), basis.rows.view()));
  }
}

TEST(FrequentDirections, OptionsOutOfRangeAreNamed) {
  EXPECT_FALSE(FrequentDirections::create(0, {.sketch_rows = 1}, nullptr));
  EXPECT_FALSE(FrequentDirections::create(kMaxTrackerDim + 1, {.sketch_rows = 1}, nullptr));
  EXPECT_FALSE(FrequentDirections::create(8, {.sketch_rows = 0}, nullptr));
  const auto wrong = FrequentDirections::create(8, {.sketch_rows = 9}, nullptr);
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().message,
            "frequent directions: 9 sketch rows; 1 to the dimension 8 are allowed");
  auto eight = make(8, 4);
  EXPECT_FALSE(eight->merge(*make(8, 3)));
  EXPECT_FALSE(eight->merge(*make(9, 4)));
}

TEST(FrequentDirections, MergingWithItselfDoublesTheEnergy) {
  Random random(7);
  const Matrix A = falling_rows(60, 10, 0.7, random);
  auto tracker = make(10, 4);
  ASSERT_TRUE(tracker->update(A.view()));
  const double delta = tracker->delta(), energy = tracker->energy();
  ASSERT_TRUE(tracker->merge(*tracker));
  EXPECT_DOUBLE_EQ(tracker->energy(), 2.0 * energy);
  EXPECT_GE(tracker->delta(), 2.0 * delta);
  tracker->clear();
  EXPECT_EQ(tracker->save(), make(10, 4)->save());
}

}  // namespace
}  // namespace kvspan
