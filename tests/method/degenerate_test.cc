// SPDX-License-Identifier: Apache-2.0
// Settings at which a method must be exact, and methods that must agree with each other.
#include <gtest/gtest.h>

#include <string>

#include "cache/code/coded_side.h"
#include "method/method_cache.h"
#include "recipe/recipe.h"
#include "tests/method/synthetic.h"

namespace kvspan {
namespace {

using testing::SyntheticText;

std::unique_ptr<MethodCache> make(const SyntheticText& text, const Calibration& calibration,
                                  const std::string& recipe) {
  Result<Recipe> parsed = Recipe::parse(recipe);
  EXPECT_TRUE(parsed) << (parsed ? "" : parsed.error().message);
  Result<std::shared_ptr<const Prepared>> prepared = prepare(text.shape(), *parsed, &calibration);
  EXPECT_TRUE(prepared) << (prepared ? "" : prepared.error().message);
  return std::make_unique<MethodCache>(*prepared);
}

// All directions in f32 lose nothing but rounding: a score is off by some d eps |q||k|.
TEST(Degenerate, FullRankInF32ReproducesFull) {
  const SyntheticText text(testing::synthetic_shape(), 300, 11);
  const Calibration calibration = text.calibration();
  const auto full = make(text, calibration, "full:store=f32");
  const std::vector<float> expected = testing::run(*full, text, 0, 300, 10);
  for (const char* method :
       {"static:", "static:basis=qk,", "static:basis=attn,", "fd:tau=0.1,bases=f32,",
        "oja:bases=f32,", "oja:stale=rotate,", "rotate:", "spectral:block=48,bases=f32,"}) {
    for (const char* rope : {"post", "pre", "anchor"}) {
      for (const char* share : {"head", "layer"}) {
        const std::string recipe = std::string(method) +
                                   "rk=d,rv=d,store=f32,sink=0,recent=0,rope=" + rope +
                                   ",share=" + share;
        const auto cache = make(text, calibration, recipe);
        EXPECT_LE(testing::largest_difference(testing::run(*cache, text, 0, 300, 10), expected),
                  1e-3)
            << recipe;
      }
    }
  }
}

TEST(Degenerate, ReconstructingFirstEqualsReadingCoefficients) {
  const SyntheticText text(testing::synthetic_shape(), 200, 12);
  const Calibration calibration = text.calibration();
  for (const char* rope : {"post", "pre", "anchor", "post,gamma=sqrt"}) {
    const std::string tail = std::string(",rk=5,rv=7,sink=3,recent=9,store=f32,rope=") + rope;
    const auto direct = make(text, calibration, "static:read=coefficients" + tail);
    const auto rebuilt = make(text, calibration, "static:read=reconstruct" + tail);
    EXPECT_LE(testing::largest_difference(testing::run(*direct, text, 0, 200, 25),
                                          testing::run(*rebuilt, text, 0, 200, 25)),
              1e-5)
        << rope;
  }
}

// After many refreshes a stored row is at most as far from its projection onto the basis of now as
// the refreshes have taken away from it.
TEST(Degenerate, RotatedCoefficientsEqualProjectionWithinTheLostEnergy) {
  const SyntheticText text(testing::synthetic_shape(1, 1, 16), 600, 13);
  const Calibration calibration = text.calibration();
  const auto cache =
      make(text, calibration, "rotate:rk=10,rv=10,every=32,store=f32,sink=0,recent=0,certify=on");
  testing::run(*cache, text, 0, 600, 50);
  const SegmentList& list = cache->group(0, 0).list();
  const KvRows rows = text.rows(0, 0, 600);
  std::int32_t checked = 0;
  for (const Segment& segment : list.segments()) {
    if (!segment.coded()) continue;
    const CodedSide::Part& part = segment.coded_keys->parts()[0];
    std::vector<float> stored(10), direct(10);
    for (std::int32_t t = 0; t < segment.tokens(); ++t, ++checked) {
      part.coefficients(t, {stored.data(), {1, 10}});
      part.code->analyse(rows.keys.row(segment.positions.at(t), 0), direct.data());
      double off = 0.0;
      for (std::size_t i = 0; i < 10; ++i) off += std::pow(double{stored[i]} - direct[i], 2.0);
      // Both the stored row and the projection lie in the basis, so their distance is at most that
      // of the stored row to the row itself, which the residual norm bounds.
      EXPECT_LE(std::sqrt(off), segment.coded_keys->residual(0, t) + 1e-5);
    }
  }
  EXPECT_EQ(checked, 576);  // 18 units of 32
}

}  // namespace
}  // namespace kvspan
