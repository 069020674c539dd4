// SPDX-License-Identifier: Apache-2.0
// Codes made on the device against those that the host makes of the same rows.
#include "tests/cuda/device_run.h"

namespace kvspan::testing {
namespace {

void check(const std::string& recipe_text, std::int32_t kv_heads, std::int32_t dim) {
  const CacheShape shape = wide_shape(kv_heads, 4, dim);
  const SyntheticText text(shape, 600, 21);
  const Calibration calibration = text.calibration();
  const FilledCache filled = filled_cache(recipe_text, text, calibration, shape, 600);
  ASSERT_NE(filled.cache, nullptr);
  const auto& group_codes = filled.recipe.codes[0];
  const std::vector<cuda::BandsTiles> layouts = layouts_of(group_codes);
  std::size_t different = 0, all = 0;
  for (std::size_t g = 0; g < group_codes.size(); ++g) {
    const BandsCode& code = *group_codes[g];
    const cuda::BandsTiles& layout = layouts[g];
    const std::vector<std::byte> tiles = filled.cache->read_tiles(0, 0, int(g)).value();
    ASSERT_EQ(tiles.size(), layout.tile_bytes() * std::size_t((filled.coded + 31) / 32));
    const auto n = std::size_t(code.places());
    std::vector<float> z(std::size_t(code.width())), c(n), keys, values;
    std::vector<std::int8_t> codes(n);
    for (std::int32_t t = filled.recipe.sink; t < filled.coded; ++t) {
      const KvRows row = text.rows(0, t, 1);
      const auto first = std::int32_t(g) * code.heads();
      keys.assign(row.keys.row(0, first), row.keys.row(0, first) + code.key_width());
      values.assign(row.values.row(0, first),
                    row.values.row(0, first) + code.width() - code.key_width());
      for (float& x : keys) x = as_f16(x);
      for (float& x : values) x = as_f16(x);
      std::int8_t gain = 0;
      code.gather(keys.data(), values.data(), t, z.data());
      code.encode(z.data(), codes.data(), &gain, c.data());
      const std::byte* tile = tiles.data() + std::size_t(t / 32) * layout.tile_bytes();
      ASSERT_EQ(layout.escaped(tile), 0u);
      const int token = t % 32;
      double largest = 0.0;
      for (std::size_t p = 0; p < code.layout().stored(); ++p) {
        largest = std::max(largest, std::abs(double{c[p]}) / code.steps()[p]);
      }
      const double exact = 8.0 * std::log2(double{code.gain_rule().gain_of(c.data())});
      if (layout.gain(tile, token) != gain) {
        // Only where the logarithm lies between two codes to f32's last digits.
        ASSERT_NEAR(std::abs(exact - std::floor(exact)), 0.5, 1e-3) << "token " << t;
        continue;
      }
      const double factor = code.gain() ? 1.0 / log_gain(gain) : 1.0;
      for (std::size_t p = 0; p < code.layout().stored(); ++p, ++all) {
        const std::int8_t found = layout.get(tile, token, int(p));
        if (found == codes[p]) continue;
        ++different;
        // Sums of D products in another order: off by some D 2^-24 of the largest level met.
        const double level = double{c[p]} * factor / code.steps()[p];
        const double least = double(code.width()) * 0x1p-24 * (1.0 + largest * factor) * 8.0;
        ASSERT_NEAR(level, std::nearbyint(level), least) << "token " << t << " place " << p;
        ASSERT_LE(std::abs(int{found} - int{codes[p]}), 1);
      }
    }
  }
  ASSERT_GT(all, 10000u);
  EXPECT_LE(different * 1000, all) << different << " of " << all;
}

TEST(DeviceCodes, AreTheHosts) {
  KVSPAN_NEEDS_DEVICE();
  check("bands:quantizer=uniform,escape=0,bits=2", 2, 64);
  check("bands:quantizer=uniform,escape=0,bits=3,sink=16,recent=20", 3, 64);
  check("bands:quantizer=uniform,escape=0,bits=1.55,levels=0/2,grain=64,share=kvgroup", 4, 128);
  check("bands:quantizer=uniform,escape=0,bits=4.5,share=kvgroup,anchor=512", 4, 64);
  check("bands:quantizer=uniform,escape=0,bits=2,sink=0", 1, 256);
}

}  // namespace
}  // namespace kvspan::testing
