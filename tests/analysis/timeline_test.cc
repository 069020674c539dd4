// SPDX-License-Identifier: Apache-2.0
#include "analysis/timeline.h"

#include <gtest/gtest.h>

#include <numeric>

#include "analysis/compare.h"
#include "cache/rope.h"
#include "tests/analysis/fixtures/reference.h"
#include "tests/analysis/reference_rows.h"

namespace kvspan::testing {
namespace {

Matrix in_floats(const MatrixD& rows) {
  Matrix out(rows.rows(), rows.cols());
  std::copy_n(rows.data(), rows.rows() * rows.cols(), out.data());
  return out;
}
std::vector<std::int32_t> counting(std::size_t n, std::int32_t from = 0) {
  std::vector<std::int32_t> positions(n);
  std::iota(positions.begin(), positions.end(), from);
  return positions;
}

// Rows in f32 move a mean residual by 2^-24 at most, times a small constant.
TEST(Residuals, AgreeWithNumpyOnRows) {
  const auto directions = symmetric_eigen(moment_of(reference_rows(11)).view()).value();
  const Matrix rows = in_floats(reference_rows(23));
  const std::array<std::size_t, 2> ranks{kReferenceRank, kReferenceDim};
  const auto bins = residuals_by_position(rows.view(), counting(kReferenceRows), directions, ranks,
                                          kReferenceRows, 1);
  ASSERT_EQ(bins.size(), 1u);
  EXPECT_NEAR(bins[0].residuals[0], kReferenceMeanResidual, 1e-6);
  EXPECT_EQ(bins[0].residuals[1], 0.0);  // all directions: nothing is left
}

TEST(Residuals, GoToTheBinOfTheirPositionAndRowsOfZeroCountAsNone) {
  SymmetricEigen axes{{1.0, 0.0}, MatrixD(2, 2)};
  axes.vectors(0, 0) = axes.vectors(1, 1) = 1.0;
  Matrix rows(4, 2);
  rows(0, 0) = 1.0f;                     // within the first direction
  rows(1, 1) = 2.0f;                     // outside
  rows(2, 0) = 3.0f, rows(2, 1) = 4.0f;  // 4 / 5 outside; row 3 is zero
  const std::vector<std::int32_t> positions{0, 1, 30, 31};
  const std::array<std::size_t, 1> ranks{1};
  const auto bins = residuals_by_position(rows.view(), positions, axes, ranks, 40, 4);
  ASSERT_EQ(bins.size(), 2u);
  EXPECT_EQ((std::array{bins[0].from, bins[0].to, bins[1].from, bins[1].to}),
            (std::array{0, 10, 30, 40}));
  EXPECT_DOUBLE_EQ(bins[0].residuals[0], 0.5);
  EXPECT_NEAR(bins[1].residuals[0], 0.4, 1e-15);
}

TEST(Chunks, AreThoseOfTheirRowsAlone) {
  const Matrix rows = in_floats(reference_rows(11));
  const std::array<std::size_t, 1> ranks{kReferenceRank};
  // Positions 8..103 in chunks of 32: 24, 32, 32 and 8 rows.
  const auto chunks = inspect_chunks(rows.view(), counting(kReferenceRows, 8), 32, ranks).value();
  ASSERT_EQ(chunks.size(), 4u);
  EXPECT_EQ(chunks[0].rows + chunks[1].rows + chunks[2].rows + chunks[3].rows, kReferenceRows);
  EXPECT_EQ((std::array{chunks[0].from, chunks[3].from, chunks[3].to}), (std::array{0, 96, 128}));
  EXPECT_TRUE(chunks[0].overlaps.empty());
  double energy = 0.0;
  for (const auto& chunk : chunks) energy += chunk.figures.energy * static_cast<double>(chunk.rows);
  double whole = 0.0;
  for (std::size_t i = 0; i < rows.rows() * rows.cols(); ++i) {
    whole += double{rows.data()[i]} * rows.data()[i];
  }
  EXPECT_NEAR(energy / whole, 1.0, 1e-12);
  // A chunk of 8 rows has no more than 8 directions.
  EXPECT_NEAR(chunks[3].spectrum[8], 0.0, 1e-12 * chunks[3].spectrum[0]);
}

TEST(Chunks, OfRepeatedRowsOverlapWholly) {
  const Matrix once = in_floats(reference_rows(11));
  Matrix twice(2 * kReferenceRows, kReferenceDim);
  std::copy_n(once.data(), kReferenceRows * kReferenceDim, twice.data());
  std::copy_n(once.data(), kReferenceRows * kReferenceDim, twice.row(kReferenceRows));
  const std::array<std::size_t, 2> ranks{2, kReferenceRank};
  const auto chunks =
      inspect_chunks(twice.view(), counting(2 * kReferenceRows), kReferenceRows, ranks).value();
  ASSERT_EQ(chunks.size(), 2u);
  for (const double overlap : chunks[1].overlaps) EXPECT_NEAR(overlap, 1.0, 1e-10);
}

TEST(FirstWindow, EndsWherePositionsFallBack) {
  EXPECT_EQ(first_window({}), 0u);
  EXPECT_EQ(first_window(std::vector<std::int32_t>{4, 9, 17, 5, 6}), 3u);
  EXPECT_EQ(first_window(std::vector<std::int32_t>{4, 9}), 2u);
}

TEST(SampleRows, TurnKeysAsTheSideSays) {
  LayerShape shape;
  shape.query_heads = shape.kv_heads = 2;
  shape.key_dim = 2;
  shape.value_dim = 3;
  shape.rope = {Rope::Pairs::kNeighbours, 2, {0.25}, 1.0f};
  LayerCalibration layer;
  layer.sample_rows = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  const std::vector<std::int32_t> positions{21};
  EXPECT_EQ(sample_rows(shape, positions, layer, Side::kKeyPre, 1, 0)(0, 1), 4.0f);
  EXPECT_EQ(sample_rows(shape, positions, layer, Side::kValue, 1, 0)(0, 2), 10.0f);
  std::array<float, 2> turned{3, 4};
  rope_rotate(shape.rope, 21, turned.data());
  EXPECT_EQ(sample_rows(shape, positions, layer, Side::kKeyPost, 1, 0)(0, 0), turned[0]);
  // Block of 8: position 21 lies in [16, 24), whose middle is 20.
  std::array<float, 2> anchored{3, 4};
  rope_rotate(shape.rope, 1, anchored.data());
  EXPECT_NEAR(sample_rows(shape, positions, layer, Side::kKeyAnchored, 1, 8)(0, 0), anchored[0],
              1e-6);
}

}  // namespace
}  // namespace kvspan::testing
