// SPDX-License-Identifier: Apache-2.0
// Stored error bounds against the error in double precision, over 100,000 random rows per codec.
#include <gtest/gtest.h>

#include <cmath>

#include "base/random.h"
#include "codec/codec.h"
#include "stored_rows.h"

namespace kvspan {
namespace {

// Rows as caches meet them and worse: Gaussian, heavy-tailed, constant, mostly zero, and multiples
// of one direction (rank one), each at a scale from 1e-3 to 1e3.
void fill_row(Random& random, std::size_t kind, float* x, std::size_t n,
              const std::vector<float>& direction) {
  const double scale = std::pow(10.0, -3.0 + 6.0 * random.uniform());
  const double factor = random.normal();
  for (std::size_t i = 0; i < n; ++i) {
    const double g = random.normal();
    double v = g;
    if (kind == 1) v = g / std::abs(random.normal() + 1e-6);  // Cauchy
    if (kind == 2) v = factor;
    if (kind == 3) v = random.below(16) ? 0.0 : g;
    if (kind == 4) v = factor * direction[i];
    x[i] = static_cast<float>(std::clamp(scale * v, -6e4, 6e4));
  }
}

class Bounds : public ::testing::TestWithParam<const char*> {};

TEST_P(Bounds, AreNeverBelowTheTrueErrorAndHardlyAbove) {
  constexpr std::size_t kRows = 64, kTrials = 100000;
  Random random(51);
  for (std::size_t done = 0; done < kTrials; done += kRows) {
    const std::size_t cols = 1 + random.below(160);
    const Codec codec = codec_of(GetParam(), cols);
    std::vector<float> direction(cols), x(kRows * cols);
    for (auto& v : direction) v = static_cast<float>(random.normal());
    for (std::size_t r = 0; r < kRows; ++r) fill_row(random, r % 5, &x[r * cols], cols, direction);
    StoredRows stored(codec, kRows);
    ASSERT_TRUE(stored.encode(codec, x));
    const auto back = stored.decode(codec);
    for (std::size_t r = 0; r < kRows; ++r) {
      double squares = 0, largest = 0;
      for (std::size_t c = 0; c < cols; ++c) {
        const double d = std::abs(double{x[r * cols + c]} - double{back[r * cols + c]});
        squares += d * d;
        largest = std::max(largest, d);
      }
      ASSERT_GE(double{stored.l2[r]}, std::sqrt(squares)) << "seed 51, trial " << done + r;
      ASSERT_GE(double{stored.linf[r]}, largest) << "seed 51, trial " << done + r;
      ASSERT_LE(double{stored.l2[r]}, std::sqrt(squares) * (1 + 1e-5) + 1e-21);
      ASSERT_LE(double{stored.linf[r]}, largest * (1 + 1e-6));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Codecs, Bounds,
                         ::testing::Values("f32", "f16", "bf16", "int8:row", "int8:tile=16",
                                           "int4:group=32", "int4:group=32,asym", "int3:group=32",
                                           "int3:row,asym", "int2:group=32", "int2:column=32,asym",
                                           "int8:tensor,scale=f32", "q8_0", "q4_0"));

}  // namespace
}  // namespace kvspan
