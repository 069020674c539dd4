// SPDX-License-Identifier: Apache-2.0
// The whole inspection on calibrations made from rows at random, against the same figures computed
// from the rows.
#include "analysis/inspection.h"

#include <gtest/gtest.h>

#include "analysis/coding_gain.h"
#include "analysis/pool.h"
#include "tests/analysis/reference_rows.h"

namespace kvspan::testing {
namespace {

// Two heads of keys and values of 3 numbers each: rows of 12 numbers are z.
LayerShape layer_shape() {
  LayerShape shape;
  shape.query_heads = shape.kv_heads = 2;
  shape.key_dim = shape.value_dim = 3;
  shape.rope = {Rope::Pairs::kHalves, 2, {0.7}, 1.0f};
  shape.logit_scale = 0.5f;
  return shape;
}

std::vector<float> floats(const MatrixD& M) {
  return {M.data(), M.data() + M.rows() * M.cols()};
}
std::vector<float> mean_of(const MatrixD& rows, std::size_t first, std::size_t n) {
  std::vector<float> out;
  for (std::size_t j = first; j < first + n; ++j) {
    double sum = 0.0;
    for (std::size_t i = 0; i < rows.rows(); ++i) sum += rows(i, j);
    out.push_back(static_cast<float>(sum / static_cast<double>(rows.rows())));
  }
  return out;
}

Calibration calibration(std::uint32_t seed, double energy = 1.0) {
  const MatrixD rows = reference_rows(seed);
  Calibration out;
  out.tokens = static_cast<std::int64_t>(rows.rows());
  out.window = 64;
  LayerCalibration layer;
  const MatrixD joint = moment_of(rows);
  layer.joint_moment = floats(joint);
  layer.key_mean = mean_of(rows, 0, 6);
  layer.value_mean = mean_of(rows, 6, 6);
  MatrixD keys(6, 6);
  for (std::size_t i = 0; i < 36; ++i) keys.data()[i] = joint(i / 6, i % 6);
  layer.rotated_key_moment = floats(keys);  // as if nothing had turned
  layer.rotated_key_mean = layer.key_mean;
  for (std::size_t h = 0; h < 2; ++h) {
    for (std::size_t i = 0; i < 9; ++i) {
      layer.query_moment.push_back(i % 4 == 0 ? 1.0f : 0.0f);
      layer.output_metric.push_back(i % 4 == 0 ? static_cast<float>(2.0 / energy) : 0.0f);
    }
  }
  layer.raw_query_moment = layer.key_metric = layer.query_moment;
  layer.value_metric = layer.output_metric;
  layer.residual_energy = energy;
  for (std::size_t i = 0; i < rows.rows(); ++i) {
    out.sample_positions.push_back(static_cast<std::int32_t>(i % 64));
    layer.sample_rows.insert(layer.sample_rows.end(), rows.row(i), rows.row(i) + 12);
  }
  out.layers = {layer};
  return out;
}

Inspection inspect(const std::vector<Calibration>& texts, InspectOptions options = {}) {
  options.chunk = 16;
  auto found = inspect_calibrations({{layer_shape()}}, texts, options);
  EXPECT_TRUE(found) << found.error().message;
  return std::move(*found);
}

TEST(Inspection, HasEverySideHeadAndPair) {
  InspectOptions options;
  options.anchor = 8;
  options.ranks = {1, 2};
  const Inspection found = inspect({calibration(11), calibration(23)}, options);
  ASSERT_EQ(found.layers.size(), 1u);
  const LayerInspection& layer = found.layers[0];
  EXPECT_EQ(layer.heads.size(), 4u * 2u);
  EXPECT_EQ(layer.gains.size(), 4u);
  EXPECT_EQ(layer.joint.size(), 2u);
  for (const HeadInspection& head : layer.heads) {
    EXPECT_EQ(head.spectrum.size(), 3u);
    EXPECT_EQ(head.by_corpus.size(), 2u);
    ASSERT_EQ(head.pairs.size(), 2u);
    EXPECT_EQ(head.pairs[0].comparisons.size(), 2u);
    EXPECT_EQ(head.chunks.size(), 4u);  // of the first 64 positions
    EXPECT_FALSE(head.residuals.empty());
    const bool weighed = head.side == Side::kKeyPost || head.side == Side::kValue;
    EXPECT_EQ(head.sensitivities.size(), weighed ? 2u : 0u);
  }
}

TEST(Inspection, SpectraAreOfAllTextsTogether) {
  const Inspection found = inspect({calibration(11), calibration(23)});
  // The moment of both is the mean of the two, which have equally many rows.
  const MatrixD a = moment_of(reference_rows(11)), b = moment_of(reference_rows(23));
  MatrixD values(3, 3);
  for (std::size_t i = 0; i < 9; ++i) {
    const std::size_t r = 9 + i / 3, c = 9 + i % 3;  // values of head 1
    values.data()[i] = 0.5 * (a(r, c) + b(r, c));
  }
  const auto eigen = symmetric_eigen(values.view()).value();
  const HeadInspection& head = found.layers[0].heads.back();
  ASSERT_EQ(head.side, Side::kValue);
  ASSERT_EQ(head.head, 1u);
  for (std::size_t i = 0; i < 3; ++i) {
    // Moments are kept in f32.
    EXPECT_NEAR(head.spectrum[i], eigen.values[i], 4 * 6e-8 * eigen.values[0]);
  }
  // Weights of 2 on every direction that is left out.
  EXPECT_NEAR(head.sensitivities[0], 2.0 * (eigen.values[1] + eigen.values[2]),
              1e-6 * eigen.values[0]);
}

TEST(Inspection, CodingTogetherNeverLosesAndUnitsDoNotMatter) {
  InspectOptions options;
  options.anchor = 8;
  Calibration text = calibration(11);
  const Inspection found = inspect({text}, options);
  for (const LayerGain& gain : found.layers[0].gains) EXPECT_LE(gain.head, gain.layer + 1e-9);
  for (const JointGain& gain : found.layers[0].joint) {
    EXPECT_LE(gain.head, gain.layer + 1e-9);
    EXPECT_LE(gain.layer, gain.key_value + 1e-9);
  }
  // Values in units a thousand times smaller.
  for (std::size_t i = 0; i < 12; ++i) {
    for (std::size_t j = 0; j < 12; ++j) {
      text.layers[0].joint_moment[i * 12 + j] *=
          (i < 6 ? 1.0f : 1000.0f) * (j < 6 ? 1.0f : 1000.0f);
    }
  }
  for (float& mean : text.layers[0].value_mean) mean *= 1000.0f;
  const Inspection scaled = inspect({text}, options);
  EXPECT_NEAR(scaled.layers[0].joint[0].key_value, found.layers[0].joint[0].key_value, 1e-3);
}

TEST(Inspection, RefusesRanksAndLayersThatAreNotThere) {
  const std::vector<Calibration> texts{calibration(11)};
  InspectOptions options;
  options.ranks = {4};
  auto found = inspect_calibrations({{layer_shape()}}, texts, options);
  ASSERT_FALSE(found);
  EXPECT_NE(found.error().message.find("rank 4"), std::string::npos);
  options.ranks = {};
  options.layers = {1};
  found = inspect_calibrations({{layer_shape()}}, texts, options);
  ASSERT_FALSE(found);
  EXPECT_NE(found.error().message.find("layer 1"), std::string::npos);
}

TEST(Pool, WeighsByTokensAndKeepsTheMetricPerEnergy) {
  std::vector<Calibration> texts{calibration(11, 1.0), calibration(23, 4.0)};
  texts[0].tokens = 300;
  texts[1].tokens = 100;
  const Calibration pooled = pool_calibrations(texts);
  EXPECT_EQ(pooled.tokens, 400);
  EXPECT_FLOAT_EQ(pooled.layers[0].joint_moment[5], 0.75f * texts[0].layers[0].joint_moment[5] +
                                                        0.25f * texts[1].layers[0].joint_moment[5]);
  EXPECT_DOUBLE_EQ(pooled.layers[0].residual_energy, 1.75);
  // Both metrics are 2 over the text's energy.
  EXPECT_FLOAT_EQ(pooled.layers[0].output_metric[0], static_cast<float>(2.0 / 1.75));
}

}  // namespace
}  // namespace kvspan::testing
