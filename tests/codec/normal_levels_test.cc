// SPDX-License-Identifier: Apache-2.0
#include "codec/normal_levels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/random.h"
#include "codec/codec.h"

namespace kvspan {
namespace {

double density(double x) {
  return std::exp(-0.5 * x * x) / std::sqrt(2.0 * std::acos(-1.0));
}

// By the middle of small steps: every level is the mean of the numbers nearest to it, and the error
// is what Max tabulates (1960, table I).
TEST(NormalLevels, AreTheMeansOfWhatIsNearestToThem) {
  const double errors[] = {0.1175, 0.03454, 0.009497};
  for (const int bits : {2, 3, 4}) {
    const auto levels = normal_levels(bits);
    ASSERT_EQ(levels.size(), std::size_t(1) << bits);
    std::vector<double> mass(levels.size()), sum(levels.size());
    double error = 0.0;
    constexpr double kStep = 1e-4;
    for (double x = -9.0 + kStep / 2; x < 9.0; x += kStep) {
      std::size_t nearest = 0;
      for (std::size_t i = 1; i < levels.size(); ++i) {
        if (std::abs(x - levels[i]) < std::abs(x - levels[nearest])) nearest = i;
      }
      const double p = kStep * density(x), off = x - levels[nearest];
      mass[nearest] += p;
      sum[nearest] += p * x;
      error += p * off * off;
    }
    for (std::size_t i = 0; i < levels.size(); ++i) {
      EXPECT_NEAR(levels[i], sum[i] / mass[i], 1e-4) << bits << " bits, level " << i;
      EXPECT_NEAR(levels[i], -levels[levels.size() - 1 - i], 1e-6);
    }
    EXPECT_NEAR(error, errors[bits - 2], 5e-4 * errors[bits - 2]) << bits << " bits";
  }
}

TEST(NormalLevels, CodecGivesEveryNumberTheNearestLevelOfItsRow) {
  Random random(3);
  for (const int bits : {2, 3, 4}) {
    for (const std::size_t cols : {1u, 7u, 64u, 300u}) {
      const auto codec =
          Codec::create(parse_codec_spec("int" + std::to_string(bits) + ":normal").value(), cols)
              .value();
      constexpr std::size_t kRows = 5;
      std::vector<float> x(kRows * cols), back(x.size()), l2(kRows), linf(kRows);
      for (float& v : x) v = 20.0f * float(random.normal());
      std::fill_n(x.begin(), cols, 0.0f);  // a row of zeros stays one
      const EncodedSize size = codec.encoded_size(kRows);
      std::vector<std::byte> payload(size.payload_bytes), scales(size.scale_bytes);
      ASSERT_TRUE(codec.encode({x.data(), {kRows, cols}}, payload, scales, {l2, linf}));
      codec.decode(payload, scales, 0, {back.data(), {kRows, cols}});
      for (std::size_t r = 0; r < kRows; ++r) {
        double square = 0.0, off = 0.0, most = 0.0;
        for (std::size_t i = 0; i < cols; ++i) square += double{x[r * cols + i]} * x[r * cols + i];
        const double scale = std::sqrt(square / double(cols));
        for (std::size_t i = 0; i < cols; ++i) {
          const double v = x[r * cols + i];
          double nearest = 1e30;
          for (const float level : normal_levels(bits)) {
            nearest = std::min(nearest, std::abs(v - scale * level));
          }
          const double error = std::abs(v - back[r * cols + i]);
          EXPECT_NEAR(error, nearest, 4e-3 * scale) << "the scale is rounded to f16";
          off += error * error;
          most = std::max(most, error);
        }
        EXPECT_GE(l2[r] * (1 + 1e-6), std::sqrt(off));
        EXPECT_GE(linf[r] * (1 + 1e-6), most);
      }
    }
  }
}

}  // namespace
}  // namespace kvspan
