// SPDX-License-Identifier: Apache-2.0
// Moments between layers against plain double-precision loops over made-up rows, and what is
// answered to layers that do not come as they have to.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "kvspan/moments.h"
#include "tests/method/synthetic.h"

namespace kvspan {
namespace neighbour_moments_test {

using testing::SyntheticText;

constexpr std::int32_t kTokens = 90, kSkip = 7;

// Layers of different widths, of which only the first is a multiple of 8; the third has no RoPE.
CacheShape uneven_shape() {
  CacheShape shape = testing::synthetic_shape(5, 2, 6);
  const std::int32_t heads[] = {2, 3, 1, 2, 1}, value_dims[] = {6, 4, 9, 5, 3};
  for (std::size_t i = 0; i < shape.layers.size(); ++i) {
    shape.layers[i].kv_heads = heads[i];
    shape.layers[i].query_heads = 2 * heads[i];
    shape.layers[i].value_dim = value_dims[i];
  }
  shape.layers[2].rope = {};
  shape.layers[3].rope.magnitude = 1.25f;
  return shape;
}

// z of a token: keys turned back, then values.
std::vector<double> row_of(const SyntheticText& text, std::size_t layer, std::int32_t token) {
  const LayerShape& shape = text.shape().layers[layer];
  const KvRows rows = text.rows(layer, token, 1);
  std::vector<double> z;
  for (std::size_t h = 0; h < std::size_t(shape.kv_heads); ++h) {
    const float* key = rows.keys.row(0, h);
    std::vector<double> raw(key, key + shape.key_dim);
    const std::size_t pairs = shape.rope.angles.size();
    for (std::size_t p = 0; p < pairs; ++p) {
      const bool neighbours = shape.rope.pairs == Rope::Pairs::kNeighbours;
      const std::size_t a = neighbours ? 2 * p : p, b = neighbours ? 2 * p + 1 : p + pairs;
      const double angle = token * shape.rope.angles[p];
      raw[a] = (std::cos(angle) * key[a] + std::sin(angle) * key[b]) / shape.rope.magnitude;
      raw[b] = (std::cos(angle) * key[b] - std::sin(angle) * key[a]) / shape.rope.magnitude;
    }
    z.insert(z.end(), raw.begin(), raw.end());
  }
  for (std::size_t h = 0; h < std::size_t(shape.kv_heads); ++h) {
    const float* value = rows.values.row(0, h);
    z.insert(z.end(), value, value + shape.value_dim);
  }
  return z;
}

std::vector<double> plain_moment(const SyntheticText& text, std::size_t layer, std::size_t other) {
  std::vector<double> sums;
  for (std::int32_t t = kSkip; t < text.size(); ++t) {
    const auto z = row_of(text, layer, t), y = row_of(text, other, t);
    sums.resize(z.size() * y.size());
    for (std::size_t i = 0; i < z.size(); ++i) {
      for (std::size_t j = 0; j < y.size(); ++j) sums[i * y.size() + j] += z[i] * y[j];
    }
  }
  for (double& x : sums) x /= text.size() - kSkip;
  return sums;
}

MomentOptions options_with(std::int32_t neighbours) {
  MomentOptions options;
  options.window = kTokens;
  options.skip = kSkip;
  options.tokens = kTokens - kSkip;
  options.samples = 8;
  options.block = 64;
  options.neighbours = neighbours;
  return options;
}

// Blocks of `block` tokens, layer by layer; all calls of a block by one team without a pause.
Calibration gathered(const SyntheticText& text, std::int32_t neighbours, std::int32_t block,
                     int threads) {
  auto moments = MomentCollector::create(text.shape(), options_with(neighbours)).value();
  ThreadPool pool(threads);
  for (std::int32_t at = 0; at < text.size(); at += block) {
    const std::int32_t n = std::min(block, text.size() - at);
    pool.run([&](Team& team) {
      for (std::size_t l = 0; l < text.shape().layers.size(); ++l) {
        const Status added = moments.add_rows(static_cast<int>(l), text.rows(l, at, n), team);
        EXPECT_TRUE(added) << added.error().message;
      }
    });
    pool.run([&](Team& team) {
      for (std::size_t l = 0; l < text.shape().layers.size(); ++l) {
        const Status added = moments.add_queries(static_cast<int>(l), text.queries(l, at, n), team);
        EXPECT_TRUE(added) << added.error().message;
      }
    });
  }
  auto calibration = moments.finish("made up", "");
  EXPECT_TRUE(calibration) << calibration.error().message;
  return std::move(*calibration);
}

TEST(NeighbourMoments, EqualPlainLoops) {
  const SyntheticText text(uneven_shape(), kTokens, 5);
  const std::size_t layers = text.shape().layers.size();
  for (const std::int32_t neighbours : {1, 2, 3, 5}) {
    const Calibration calibration = gathered(text, neighbours, 32, 1);
    EXPECT_EQ(calibration.neighbours, neighbours);
    for (std::size_t i = 0; i < layers; ++i) {
      const auto& found = calibration.layers[i].cross_moments;
      ASSERT_EQ(found.size(), std::min(std::size_t(neighbours), layers - 1 - i)) << "layer " << i;
      for (std::size_t j = 0; j < found.size(); ++j) {
        const std::vector<double> wanted = plain_moment(text, i, i + 1 + j);
        ASSERT_EQ(found[j].size(), wanted.size());
        double largest = 0.0;
        for (const double x : wanted) largest = std::max(largest, std::abs(x));
        for (std::size_t k = 0; k < wanted.size(); ++k) {
          // Keys are turned back in f32: three roundings of 2^-24 for each factor, and one of the
          // result.
          ASSERT_NEAR(found[j][k], wanted[k], 1e-6 * largest)
              << "layer " << i << ", following " << j << ", number " << k;
        }
      }
    }
  }
}

TEST(NeighbourMoments, DoNotDependOnBlocksOrThreads) {
  const SyntheticText text(uneven_shape(), kTokens, 6);
  const Calibration one = gathered(text, 2, 64, 1);
  for (const auto& [block, threads] : {std::pair{1, 1}, {5, 3}, {13, 2}, {64, 4}}) {
    const Calibration other = gathered(text, 2, block, threads);
    for (std::size_t i = 0; i < one.layers.size(); ++i) {
      EXPECT_EQ(other.layers[i].cross_moments, one.layers[i].cross_moments) << block;
      EXPECT_EQ(other.layers[i].joint_moment, one.layers[i].joint_moment) << block;
      EXPECT_EQ(other.layers[i].sample_rows, one.layers[i].sample_rows) << block;
    }
  }
}

// What else is gathered is as without them; and then layers come as they like.
TEST(NeighbourMoments, ChangeNothingElse) {
  const SyntheticText text(uneven_shape(), kTokens, 7);
  const Calibration with = gathered(text, 2, 32, 1);
  auto moments = MomentCollector::create(text.shape(), options_with(0)).value();
  TeamState state;
  Team team(state, 0, 1);
  for (const int l : {3, 0, 4, 2, 1}) {
    const auto layer = static_cast<std::size_t>(l);
    for (const auto& [first, n] : {std::pair{0, 40}, {40, 50}}) {
      ASSERT_TRUE(moments.add_rows(l, text.rows(layer, first, n), team));
      ASSERT_TRUE(moments.add_queries(l, text.queries(layer, first, n), team));
    }
  }
  const auto without = moments.finish("made up", "");
  ASSERT_TRUE(without) << without.error().message;
  EXPECT_EQ(without->neighbours, 0);
  EXPECT_EQ(without->sample_positions, with.sample_positions);
  for (std::size_t i = 0; i < with.layers.size(); ++i) {
    EXPECT_TRUE(without->layers[i].cross_moments.empty());
    EXPECT_EQ(without->layers[i].joint_moment, with.layers[i].joint_moment);
    EXPECT_EQ(without->layers[i].key_mean, with.layers[i].key_mean);
    EXPECT_EQ(without->layers[i].rotated_key_moment, with.layers[i].rotated_key_moment);
    EXPECT_EQ(without->layers[i].sample_rows, with.layers[i].sample_rows);
  }
}

// Refused, and as if it had not been tried.
TEST(NeighbourMoments, LayersComeInOrderWithTheSameTokens) {
  const SyntheticText text(uneven_shape(), kTokens, 5);
  auto moments = MomentCollector::create(text.shape(), options_with(2)).value();
  TeamState state;
  Team team(state, 0, 1);
  const auto add = [&](int layer, std::int32_t first, std::int32_t n) {
    return moments.add_rows(layer, text.rows(static_cast<std::size_t>(layer), first, n), team);
  };
  const auto refused = [&](int layer, std::int32_t first, std::int32_t n,
                           const std::vector<std::string>& words) {
    const Status status = add(layer, first, n);
    ASSERT_FALSE(status) << words.front();
    EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument);
    for (const std::string& word : words) {
      EXPECT_NE(status.error().message.find(word), std::string::npos)
          << "'" << status.error().message << "' without '" << word << "'";
    }
  };
  refused(1, 0, 32, {"layer 1", "allowed now: layer 0"});
  for (const auto& [first, n] : {std::pair{0, 32}, {32, 58}}) {
    ASSERT_TRUE(add(0, first, n));
    ASSERT_TRUE(add(1, first, n));
    refused(1, first, n, {"layer 1", "allowed now: layer 2"});
    refused(0, first, n, {"layer 0", "allowed now: layer 2"});
    refused(3, first, n, {"layer 3", "allowed now: layer 2"});
    refused(2, first, 20, {"layer 2", "20 tokens", "allowed: " + std::to_string(n)});
    if (first > 0) refused(2, 1, n, {"layer 2", "position 1", "32"});
    for (const int layer : {2, 3, 4}) ASSERT_TRUE(add(layer, first, n));
  }
  for (int layer = 0; layer < 5; ++layer) {
    ASSERT_TRUE(moments.add_queries(layer, text.queries(std::size_t(layer), 0, 32), team));
  }
  const auto calibration = moments.finish("made up", "");
  ASSERT_TRUE(calibration) << calibration.error().message;
  const Calibration wanted = gathered(text, 2, 64, 1);
  for (std::size_t i = 0; i < wanted.layers.size(); ++i) {
    EXPECT_EQ(calibration->layers[i].cross_moments, wanted.layers[i].cross_moments);
  }
}

TEST(NeighbourMoments, ANumberThatIsNotAllowedIsRefused) {
  for (const std::int32_t neighbours : {-1, kMostNeighbours + 1}) {
    const auto moments = MomentCollector::create(uneven_shape(), options_with(neighbours));
    ASSERT_FALSE(moments);
    EXPECT_NE(moments.error().message.find("neighbours is " + std::to_string(neighbours)),
              std::string::npos);
    EXPECT_NE(moments.error().message.find("allowed: 0 to 5"), std::string::npos);
  }
  // Of a single layer there are none.
  const SyntheticText text(testing::synthetic_shape(1), kTokens, 5);
  EXPECT_TRUE(gathered(text, 3, 30, 1).layers[0].cross_moments.empty());
}

// Recipes that code each layer by itself, from a calibration whose layers are read one at a time.
TEST(NeighbourMoments, ChangeNoCodeOfASingleLayer) {
  const SyntheticText text(testing::synthetic_shape(3), kTokens, 5);
  Calibration calibration = gathered(text, 2, 32, 1);
  const auto bytes = encode_calibration(calibration).value();
  const auto read = [&](std::size_t offset, std::span<std::byte> to) -> Status {
    std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(offset), to.size(), to.begin());
    return {};
  };
  const auto opened = open_calibration(ByteSource{"it", bytes.size(), read});
  ASSERT_TRUE(opened) << opened.error().message;
  EXPECT_EQ(opened->neighbours, 2);
  const auto first = layer_of(text.shape(), *opened, 0);
  ASSERT_TRUE(first) << first.error().message;
  EXPECT_EQ((*first)->cross_moments, calibration.layers[0].cross_moments);
  calibration.neighbours = 0;
  for (LayerCalibration& layer : calibration.layers) layer.cross_moments.clear();
  for (const char* recipe : {"bands:bits=3,sink=4,recent=8", "static:rk=8,rv=8,sink=4,recent=8",
                             "kvtc:sink=4,recent=8", "oscar:sink=4,recent=8"}) {
    const auto with = CacheFactory::create(text.shape(), recipe, &*opened);
    const auto without = CacheFactory::create(text.shape(), recipe, &calibration);
    ASSERT_TRUE(with) << recipe << ": " << with.error().message;
    ASSERT_TRUE(without) << recipe << ": " << without.error().message;
    EXPECT_EQ(testing::run(*with->make(), text, 0, kTokens, 30),
              testing::run(*without->make(), text, 0, kTokens, 30))
        << recipe;
  }
}

}  // namespace neighbour_moments_test
}  // namespace kvspan
