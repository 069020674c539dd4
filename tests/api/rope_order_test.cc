// SPDX-License-Identifier: Apache-2.0
// Calibrations made by an engine that orders the coordinates of a head otherwise, or rotates by other
// angles, used for a model's caches.
#include "cache/calibration/rope_order.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/method/synthetic.h"

namespace kvspan {
namespace rope_order_test {

using testing::SyntheticText;

constexpr std::int32_t kTokens = 400, kDim = 16;

CacheShape shape_with(Rope::Pairs pairs, std::int32_t rotated_dims = kDim) {
  CacheShape shape = testing::synthetic_shape(3, 2, kDim);
  for (LayerShape& layer : shape.layers) {
    layer.rope.pairs = pairs;
    layer.rope.rotated_dims = rotated_dims;
    layer.rope.angles.resize(static_cast<std::size_t>(rotated_dims / 2));
  }
  return shape;
}

// The same text with the coordinates of keys and queries as an engine with `pairs` orders them.
// Values have no order.
struct Ordered {
  CacheShape shape;
  Calibration calibration;
  std::vector<std::vector<float>> keys, values, queries;  // by layer

  Ordered(Rope::Pairs pairs, std::int32_t rotated_dims) : shape(shape_with(pairs, rotated_dims)) {
    const CacheShape neighbours = shape_with(Rope::Pairs::kNeighbours, rotated_dims);
    const SyntheticText text(neighbours, kTokens, 5);
    const auto pairs_of_all = static_cast<std::size_t>(rotated_dims / 2);
    const auto in_order = [&](const TensorView<const float, 3>& rows) {
      std::vector<float> to;
      for (std::size_t t = 0; t < rows.shape[0]; ++t) {
        for (std::size_t h = 0; h < rows.shape[1]; ++h) {
          const float* row = rows.row(t, h);
          std::vector<float> head(row, row + kDim);
          for (std::size_t p = 0; p < pairs_of_all && pairs == Rope::Pairs::kHalves; ++p) {
            head[p] = row[2 * p];
            head[p + pairs_of_all] = row[2 * p + 1];
          }
          to.insert(to.end(), head.begin(), head.end());
        }
      }
      return to;
    };
    for (std::size_t l = 0; l < shape.layers.size(); ++l) {
      const KvRows rows = text.rows(l, 0, kTokens);
      keys.push_back(in_order(rows.keys));
      queries.push_back(in_order(text.queries(l, 0, kTokens).rows));
      values.emplace_back(rows.values.data, rows.values.data + std::size_t{kTokens} * 2 * kDim);
    }
    for (std::int32_t t = 0; t < kTokens; ++t) positions.push_back(t);
    if (pairs == Rope::Pairs::kNeighbours) calibration = text.calibration();
    if (pairs == Rope::Pairs::kHalves) calibration = moments();
    calibration.ropes.clear();
    for (const LayerShape& layer : shape.layers) calibration.ropes.push_back(layer.rope);
  }

  // What attention gives for all tokens, in steps of 50, layer by layer.
  std::vector<float> run(const Calibration& with, const std::string& recipe) const {
    const auto factory = CacheFactory::create(shape, recipe, &with);
    EXPECT_TRUE(factory) << (factory ? "" : factory.error().message);
    if (!factory) return {};
    const auto cache = factory->make();
    TeamState state;
    Team team(state, 0, 1);
    const auto scratch = make_attention_scratch();
    std::vector<float> all;
    for (std::size_t at = 0; at < kTokens; at += 50) {
      for (std::size_t l = 0; l < shape.layers.size(); ++l) {
        const auto view = [&](const std::vector<float>& rows, std::size_t heads) {
          return TensorView<const float, 3>(rows.data() + at * heads * kDim, {50, heads, kDim});
        };
        const auto part = std::span(positions).subspan(at, 50);
        const int layer = static_cast<int>(l);
        std::vector<float> out(50 * 4 * kDim);
        EXPECT_TRUE(cache->append(layer, {view(keys[l], 2), view(values[l], 2), part}, team));
        EXPECT_TRUE(cache->attend(layer, {view(queries[l], 4), part},
                                  {out.data(), {50, 4, kDim}}, *scratch, team));
        EXPECT_TRUE(cache->settle(layer, team));
        all.insert(all.end(), out.begin(), out.end());
      }
    }
    return all;
  }

  std::vector<std::int32_t> positions;

 private:
  // That of the same numbers in the order of neighbours, each array's places exchanged by hand.
  Calibration moments() const {
    const CacheShape from = shape_with(Rope::Pairs::kNeighbours, shape.layers[0].rope.rotated_dims);
    Calibration c = SyntheticText(from, kTokens, 5).calibration();
    const std::size_t r = shape.layers[0].rope.angles.size();
    const auto source = [&](std::size_t place, std::size_t keys_of_all) {
      const std::size_t head = place / kDim * kDim, i = place % kDim;
      if (place >= keys_of_all || i >= 2 * r) return place;
      return head + (i < r ? 2 * i : 2 * (i - r) + 1);
    };
    const auto exchange = [&](std::vector<float>& numbers, std::size_t rows, std::size_t row_keys,
                              std::size_t columns, std::size_t column_keys) {
      const std::vector<float> old = numbers;
      for (std::size_t at = 0; at < old.size(); ++at) {
        const std::size_t matrix = at / (rows * columns), row = at / columns % rows;
        numbers[at] = old[(matrix * rows + source(row, row_keys)) * columns +
                          source(at % columns, column_keys)];
      }
    };
    const std::size_t k = 2 * kDim, z = 4 * kDim, d = kDim;
    for (LayerCalibration& layer : c.layers) {
      exchange(layer.key_mean, 1, 0, k, k);
      exchange(layer.rotated_key_mean, 1, 0, k, k);
      exchange(layer.joint_moment, z, k, z, k);
      exchange(layer.rotated_key_moment, k, k, k, k);
      exchange(layer.query_moment, d, d, d, d);
      exchange(layer.raw_query_moment, d, d, d, d);
      exchange(layer.key_metric, d, d, d, d);
      exchange(layer.sample_rows, 1, 0, z, k);
      for (auto& cross : layer.cross_moments) exchange(cross, z, k, z, k);
    }
    return c;
  }
};

void expect_same_arrays(const CacheShape& shape, const Calibration& a, const Calibration& b) {
  for (std::size_t l = 0; l < shape.layers.size(); ++l) {
    const auto x = layer_of(shape, a, l), y = layer_of(shape, b, l);
    ASSERT_TRUE(x && y);
    EXPECT_EQ((*x)->key_mean, (*y)->key_mean);
    EXPECT_EQ((*x)->value_mean, (*y)->value_mean);
    EXPECT_EQ((*x)->joint_moment, (*y)->joint_moment);
    EXPECT_EQ((*x)->cross_moments, (*y)->cross_moments);
    EXPECT_EQ((*x)->rotated_key_mean, (*y)->rotated_key_mean);
    EXPECT_EQ((*x)->rotated_key_moment, (*y)->rotated_key_moment);
    EXPECT_EQ((*x)->query_moment, (*y)->query_moment);
    EXPECT_EQ((*x)->raw_query_moment, (*y)->raw_query_moment);
    EXPECT_EQ((*x)->key_metric, (*y)->key_metric);
    EXPECT_EQ((*x)->value_metric, (*y)->value_metric);
    EXPECT_EQ((*x)->sample_rows, (*y)->sample_rows);
    EXPECT_EQ((*x)->residual_energy, (*y)->residual_energy);
  }
}

class RopeOrder : public ::testing::TestWithParam<std::int32_t> {
 protected:
  const Ordered neighbours{Rope::Pairs::kNeighbours, GetParam()};
  const Ordered halves{Rope::Pairs::kHalves, GetParam()};
};

TEST_P(RopeOrder, EveryArrayIsConvertedBothWays) {
  for (const auto& [from, to] : {std::pair(&neighbours, &halves), std::pair(&halves, &neighbours)}) {
    EXPECT_FALSE(*in_rope_order(from->shape, from->calibration)) << "it has that order";
    const auto converted = in_rope_order(to->shape, from->calibration);
    ASSERT_TRUE(converted && *converted);
    expect_same_arrays(to->shape, **converted, to->calibration);
    const auto whole = read_whole(to->shape, from->calibration);
    ASSERT_TRUE(whole) << whole.error().message;
    expect_same_arrays(to->shape, *whole, to->calibration);
    EXPECT_EQ(whole->ropes[1], to->shape.layers[1].rope);
  }
}

// Files that do not say their order show it, also those whose layers are read one at a time.
TEST_P(RopeOrder, TheOrderIsToldFromTheNumbers) {
  for (const auto& [from, to] : {std::pair(&neighbours, &halves), std::pair(&halves, &neighbours)}) {
    Calibration silent = from->calibration;
    silent.ropes.clear();
    const auto bytes = encode_calibration(silent).value();
    const auto opened = open_calibration(
        {"it", bytes.size(), [&](std::size_t offset, std::span<std::byte> out) -> Status {
           std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(offset), out.size(), out.begin());
           return {};
         }});
    ASSERT_TRUE(opened) << opened.error().message;
    for (const Calibration* calibration : {static_cast<const Calibration*>(&silent), &*opened}) {
      EXPECT_FALSE(*in_rope_order(from->shape, *calibration)) << "it has that order";
      EXPECT_TRUE(*in_rope_order(to->shape, *calibration));
    }
    expect_same_arrays(to->shape, *read_whole(to->shape, silent), to->calibration);
  }
}

TEST_P(RopeOrder, CachesOfAConvertedCalibrationAreThoseOfItsOwn) {
  for (const char* recipe : {"bands:bits=2,sink=16,recent=16,layers=3", "kvtc:bits=4,sink=16,recent=16"}) {
    SCOPED_TRACE(recipe);
    EXPECT_EQ(halves.run(neighbours.calibration, recipe), halves.run(halves.calibration, recipe));
    EXPECT_EQ(neighbours.run(halves.calibration, recipe),
              neighbours.run(neighbours.calibration, recipe));
    // Taken as it is, it would be another's.
    Calibration mistaken = neighbours.calibration;
    mistaken.ropes = halves.calibration.ropes;
    EXPECT_NE(halves.run(mistaken, recipe), halves.run(halves.calibration, recipe));
  }
}

INSTANTIATE_TEST_SUITE_P(Dims, RopeOrder, ::testing::Values(kDim, 12));

TEST(RopeAngles, OthersAreRefusedAndBothAreNamed) {
  const Ordered own(Rope::Pairs::kHalves, kDim);
  const auto expect_refused = [&](const Calibration& calibration,
                                  const std::vector<std::string>& words) {
    const auto factory = CacheFactory::create(own.shape, "bands", &calibration);
    ASSERT_FALSE(factory);
    EXPECT_EQ(factory.error().code, ErrorCode::kInvalidArgument);
    for (const std::string& word : words) {
      EXPECT_NE(factory.error().message.find(word), std::string::npos) << factory.error().message;
    }
  };
  Calibration other = own.calibration;
  other.ropes[1].angles[0] = 0.25;
  expect_refused(other, {"layer 1", "RoPE of angle 0 0.25", "the model's is 1"});
  other = own.calibration;
  other.ropes[2].rotated_dims = 12;
  other.ropes[2].angles.resize(6);
  expect_refused(other, {"layer 2", "dimensions 12", "is 16"});
  other = own.calibration;
  other.ropes[0].magnitude = 1.5f;
  expect_refused(other, {"layer 0", "magnitude 1.5", "is 1"});
  other = own.calibration;
  other.ropes.pop_back();
  expect_refused(other, {"RoPE of 2 layers, the model has 3"});
  // As another engine computes them in f32.
  other = own.calibration;
  for (Rope& rope : other.ropes) {
    for (double& angle : rope.angles) angle *= 1.00001;
  }
  EXPECT_TRUE(CacheFactory::create(own.shape, "bands", &other));
}

// Nothing tells the order of their keys.
TEST(RopeAngles, LayersWithoutRopeAreNotConverted) {
  Ordered own(Rope::Pairs::kHalves, kDim);
  CacheShape shape = own.shape;
  shape.layers[1].rope = own.calibration.ropes[1] = {};
  EXPECT_TRUE(CacheFactory::create(shape, "bands", &own.calibration));
  own.calibration.ropes[2].pairs = Rope::Pairs::kNeighbours;
  const auto factory = CacheFactory::create(shape, "bands", &own.calibration);
  ASSERT_FALSE(factory);
  EXPECT_EQ(factory.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(factory.error().message.find("layer 1 has no RoPE"), std::string::npos)
      << factory.error().message;
}

}  // namespace rope_order_test
}  // namespace kvspan
