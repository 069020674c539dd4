// SPDX-License-Identifier: Apache-2.0
// The codecs q8_0 and q4_0, and what the recipe quant makes of the same rows, against ggml's own
// round trip.
#include <ggml.h>
#include <gtest/gtest.h>

#include <cmath>

#include "cache/code/coded_side.h"
#include "codec/codec.h"
#include "method/method_cache.h"
#include "recipe/recipe.h"
#include "tests/attention/activations.h"
#include "tests/method/synthetic.h"

namespace kvspan::testing {
namespace ggml_blocks_test {

std::vector<float> ggml_round_trip(ggml_type type, const std::vector<float>& x,
                                   std::int64_t columns) {
  const auto n = static_cast<std::int64_t>(x.size());
  std::vector<std::byte> blocks(ggml_row_size(type, n));
  ggml_quantize_chunk(type, x.data(), blocks.data(), 0, n / columns, columns, nullptr);
  std::vector<float> back(x.size());
  ggml_get_type_traits(type)->to_float(blocks.data(), back.data(), n);
  return back;
}

std::vector<float> codec_round_trip(const CodecSpec& spec, const std::vector<float>& x,
                                    std::size_t columns) {
  const Codec codec = Codec::create(spec, columns).value();
  const std::size_t rows = x.size() / columns;
  std::vector<std::byte> payload(codec.encoded_size(rows).payload_bytes);
  std::vector<std::byte> scales(codec.encoded_size(rows).scale_bytes);
  EXPECT_TRUE(codec.encode({x.data(), {rows, columns}}, payload, scales));
  std::vector<float> back(x.size());
  codec.decode(payload, scales, 0, {back.data(), {rows, columns}});
  return back;
}

// Equal, but where x / d + 8.5 lies within rounding of a whole number: ggml's compiler may join the
// product and the sum into one operation, and then the code is the neighbour.
void expect_q4_0(const std::vector<float>& x, const std::vector<float>& ours,
                 const std::vector<float>& theirs) {
  std::size_t ties = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (ours[i] == theirs[i]) continue;
    const std::size_t block = i / 32 * 32;
    float most = 0.0f;
    for (std::size_t j = block; j < block + 32; ++j) {
      if (std::abs(x[j]) > std::abs(most)) most = x[j];
    }
    const double shifted = double{x[i]} / (double{most} / -8.0) + 8.5;
    EXPECT_LE(std::abs(shifted - std::round(shifted)), 16 * 0x1p-23) << x[i];
    EXPECT_NEAR(ours[i], theirs[i], 1.01 * std::abs(most) / 8.0);
    ++ties;
  }
  EXPECT_LE(ties, 1 + x.size() / 1000);
}

TEST(GgmlBlocks, TheCodecsGiveBackWhatGgmlGivesBack) {
  const Activations a = read_activations("smollm2_layer15_head1.f16");
  Random random(3);
  std::vector<float> heavy(4096);
  for (float& x : heavy) {
    x = static_cast<float>(random.normal() * std::exp(2.0 * random.normal()));
  }
  std::fill_n(heavy.begin() + 64, 32, 0.0f);
  for (const auto& x : {a.keys, a.values, a.queries, heavy}) {
    EXPECT_EQ(codec_round_trip(q8_0_spec(), x, 64), ggml_round_trip(GGML_TYPE_Q8_0, x, 64));
    expect_q4_0(x, codec_round_trip(q4_0_spec(), x, 64), ggml_round_trip(GGML_TYPE_Q4_0, x, 64));
  }
}

// quant's layout at 8 and 4 bits in groups of 32 is ggml's.
TEST(GgmlBlocks, QuantKeepsWhatGgmlKeeps) {
  const SyntheticText text(read_activations("smollm2_layer15_head1.f16"));
  const auto kept = static_cast<std::size_t>(text.size());
  for (const auto& [recipe, type] :
       {std::pair("quant:bits=8,rotate=none,sink=0,recent=0", GGML_TYPE_Q8_0),
        std::pair("quant:bits=4,rotate=none,sink=0,recent=0", GGML_TYPE_Q4_0)}) {
    MethodCache cache(prepare(text.shape(), Recipe::parse(recipe).value(), nullptr).value());
    run(cache, text, 0, text.size(), text.size());
    const KvRows rows = text.rows(0, 0, text.size());
    const std::vector<float> keys(rows.keys.data, rows.keys.data + kept * 64);
    const std::vector<float> values(rows.values.data, rows.values.data + kept * 64);
    std::vector<float> back_keys, back_values;
    for (const Segment& s : cache.group(0, 0).list().segments()) {
      ASSERT_TRUE(s.coded_keys && s.coded_values);
      std::vector<float> k(std::size_t(s.tokens()) * 64), v(k.size());
      const std::array<std::size_t, 2> shape{std::size_t(s.tokens()), 64};
      s.coded_keys->reconstruct(0, s.positions, 0, {k.data(), shape});
      s.coded_values->reconstruct(0, s.positions, 0, {v.data(), shape});
      back_keys.insert(back_keys.end(), k.begin(), k.end());
      back_values.insert(back_values.end(), v.begin(), v.end());
    }
    ASSERT_EQ(back_keys.size(), keys.size());
    // Reading multiplies by the identity, which rounds nothing.
    if (type == GGML_TYPE_Q8_0) {
      EXPECT_EQ(back_keys, ggml_round_trip(type, keys, 64));
      EXPECT_EQ(back_values, ggml_round_trip(type, values, 64));
    } else {
      expect_q4_0(keys, back_keys, ggml_round_trip(type, keys, 64));
      expect_q4_0(values, back_values, ggml_round_trip(type, values, 64));
    }
  }
}

}  // namespace ggml_blocks_test
}  // namespace kvspan::testing
