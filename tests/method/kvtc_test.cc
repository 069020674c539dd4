// SPDX-License-Identifier: Apache-2.0
// kvtc against numpy written from the paper (fixtures/make_rivals.py).
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "method/method_cache.h"
#include "recipe/recipe.h"
#include "tests/method/held_positions.h"
#include "tests/method/rivals.h"
#include "tests/method/synthetic.h"

namespace kvspan {
namespace kvtc_test {

constexpr std::size_t kHeads = 2, kDim = testing::Rivals::kDim, kWidth = kHeads * kDim;

// Neighbouring pairs turn by 10000^(-2i/d) a position.
CacheShape kvtc_shape() {
  LayerShape layer;
  layer.query_heads = layer.kv_heads = kHeads;
  layer.key_dim = layer.value_dim = kDim;
  layer.logit_scale = 0.25f;
  layer.rope.rotated_dims = kDim;
  for (std::size_t i = 0; i < kDim / 2; ++i) {
    layer.rope.angles.push_back(std::pow(10000.0, -2.0 * static_cast<double>(i) / kDim));
  }
  return {{layer}};
}

// Means and moments of the fixture's samples, rows of [keys ; values].
Calibration kvtc_calibration(const std::vector<float>& samples) {
  Calibration out = testing::SyntheticText(kvtc_shape(), 80, 1).calibration();
  LayerCalibration& layer = out.layers[0];
  const std::size_t all = 2 * kWidth, rows = samples.size() / all;
  std::vector<double> mean(all), moment(all * all);
  for (std::size_t r = 0; r < rows; ++r) {
    const float* z = samples.data() + r * all;
    for (std::size_t i = 0; i < all; ++i) {
      mean[i] += double{z[i]} / static_cast<double>(rows);
      for (std::size_t j = 0; j < all; ++j) {
        moment[i * all + j] += double{z[i]} * double{z[j]} / static_cast<double>(rows);
      }
    }
  }
  layer.key_mean.assign(mean.begin(), mean.begin() + kWidth);
  layer.value_mean.assign(mean.begin() + kWidth, mean.end());
  layer.joint_moment.assign(moment.begin(), moment.end());
  layer.sample_rows = samples;
  out.sample_positions.resize(rows);
  return out;
}

TEST(Kvtc, GivesBackTheRowsOfThePaper) {
  const testing::Rivals fixture;
  const Calibration calibration = kvtc_calibration(fixture.of("kvtc/samples"));
  for (const char* bits : {"2", "4", "6"}) {
    const std::string recipe = std::string("kvtc:sink=0,recent=0,bits=") + bits;
    MethodCache cache(prepare(kvtc_shape(), Recipe::parse(recipe).value(), &calibration).value());
    TeamState state;
    Team team(state, 0, 1);
    std::vector<std::int32_t> positions(testing::Rivals::kRows);
    std::iota(positions.begin(), positions.end(), 0);
    const std::array<std::size_t, 3> extents{testing::Rivals::kRows, kHeads, kDim};
    ASSERT_TRUE(cache.append(0,
                             {{fixture.of("kvtc/keys").data(), extents},
                              {fixture.of("kvtc/values").data(), extents},
                              positions},
                             team));
    ASSERT_TRUE(cache.settle(0, team));
    const Group& group = cache.group(0, 0);
    ASSERT_TRUE(group.list().segments().front().coded());
    const RowBlock held = testing::held_rows(group, testing::stores_of(group));
    const std::string name = std::string("kvtc/") + bits;
    // Of 128 rows of one head each. Scale and offset are rounded to f16, so that a step moves by
    // some thousandths of itself, and with it, by a whole step, the few numbers that lie between
    // two levels; such a number moves a token's rows of both heads.
    EXPECT_GE(testing::rows_alike(held.keys, fixture.of(name + "/keys"), 0.01), 112) << bits;
    EXPECT_GE(testing::rows_alike(held.values, fixture.of(name + "/values"), 0.01), 112) << bits;
    EXPECT_LE(testing::rows_alike(held.values, fixture.of("kvtc/values"), 0.01), 10)
        << "it is coded";
    // The budget counts everything but the 16 rows' share of positions.
    const double numbers = 2.0 * kWidth * testing::Rivals::kRows;
    const CacheBytes bytes = cache.bytes();
    EXPECT_LE(8.0 * static_cast<double>(bytes.coefficients + bytes.scales) / numbers,
              std::stod(bits));
  }
}

TEST(Kvtc, SaysWhatItNeeds) {
  const auto without = prepare(kvtc_shape(), Recipe::parse("kvtc").value(), nullptr);
  ASSERT_FALSE(without);
  EXPECT_NE(without.error().message.find("needs a calibration"), std::string::npos);
  const Calibration calibration = kvtc_calibration(testing::Rivals().of("kvtc/samples"));
  const auto nothing = prepare(kvtc_shape(), Recipe::parse("kvtc:bits=0.5").value(), &calibration);
  ASSERT_FALSE(nothing);
  EXPECT_NE(nothing.error().message.find("allowed: at least 1.06"), std::string::npos)
      << nothing.error().message;
}

}  // namespace kvtc_test
}  // namespace kvspan
