// SPDX-License-Identifier: Apache-2.0
#include "cuda/bands/device_recipe.h"

#include <gtest/gtest.h>

#include "tests/method/synthetic.h"

namespace kvspan::testing {
namespace {

TEST(DeviceRecipe, RefusesByNameWhatIsNotOnTheDevice) {
  const CacheShape shape = synthetic_shape(1, 2, 16);
  const SyntheticText text(shape, 300, 3);
  const Calibration calibration = text.calibration();
  for (const auto& [recipe, found, allowed] :
       {std::tuple("quant:bits=4", "quant", "full (store=f16) and bands"),
        std::tuple("full:store=f32", "full:store=f32", "store=f16"),
        std::tuple("snapkv:keep=0.5+full", "snapkv", "alone"),
        std::tuple("bands:bits=2", "quantizer=trellis", "quantizer=uniform"),
        std::tuple("bands:quantizer=uniform", "escape=", "escape=0"),
        std::tuple("bands:quantizer=uniform,escape=0,share=layer", "share=layer",
                   "share=auto|kv|kvgroup"),
        std::tuple("bands:quantizer=uniform,escape=0,anchor=64", "anchor=64", "multiples of 128"),
        std::tuple("bands:quantizer=uniform,escape=0,rope=pre", "rope=pre", "rope=anchor"),
        std::tuple("bands:quantizer=uniform,escape=0,calib=online", "calib=online", "calib=file"),
        std::tuple("bands:quantizer=uniform,escape=0,ends=int8", "ends=int8", "ends=f16")}) {
    const auto made = cuda::device_recipe(shape, recipe, &calibration);
    ASSERT_FALSE(made) << recipe;
    EXPECT_EQ(made.error().code, ErrorCode::kUnsupported) << made.error().message;
    EXPECT_NE(made.error().message.find(found), std::string::npos) << made.error().message;
    EXPECT_NE(made.error().message.find(allowed), std::string::npos) << made.error().message;
  }
}

TEST(DeviceRecipe, RefusesByNameKindsOfAttentionThatNoKernelHas) {
  const auto refused = [](const CacheShape& shape, const char* kind) {
    const auto made = cuda::device_recipe(shape, "full", nullptr);
    ASSERT_FALSE(made) << kind;
    EXPECT_EQ(made.error().code, ErrorCode::kUnsupported);
    EXPECT_NE(made.error().message.find(kind), std::string::npos) << made.error().message;
  };
  const CacheShape plain = synthetic_shape(1, 2, 16);
  EXPECT_TRUE(cuda::device_recipe(plain, "full", nullptr));
  const auto heads = static_cast<std::size_t>(plain.layers[0].query_heads);
  CacheShape shape = plain;
  shape.layers[0].alibi.assign(heads, 0.5f);
  refused(shape, "ALiBi");
  shape = plain;
  shape.layers[0].sinks.assign(heads, 0.5f);
  refused(shape, "attention sinks");
  shape = plain;
  shape.layers[0].chunk = 64;
  refused(shape, "chunks");
}

TEST(DeviceRecipe, HasOneCodeForEachGroup) {
  const CacheShape shape = synthetic_shape(2, 4, 16);
  const SyntheticText text(shape, 300, 3);
  const Calibration calibration = text.calibration();
  const auto made = cuda::device_recipe(
      shape, "bands:quantizer=uniform,escape=0,share=kvgroup,heads=2,sink=20", &calibration);
  ASSERT_TRUE(made) << made.error().message;
  EXPECT_EQ(made->sink, 32);  // in whole tiles
  EXPECT_EQ(made->recent, 128);
  ASSERT_EQ(made->codes.size(), 2u);
  for (const auto& layer : made->codes) {
    ASSERT_EQ(layer.size(), 2u);
    for (const auto& code : layer) {
      EXPECT_EQ(code->heads(), 2);
      EXPECT_EQ(code->width(), 64);
    }
  }
}

}  // namespace
}  // namespace kvspan::testing
