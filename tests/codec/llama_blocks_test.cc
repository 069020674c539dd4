// SPDX-License-Identifier: Apache-2.0
// Against blocks made by the Python package gguf (fixtures/make_llama_blocks.py).
#include "codec/llama_blocks.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "codec/codec.h"

namespace kvspan {
namespace {

struct Group {
  std::array<float, 32> x;
  std::array<std::uint8_t, 34> q8;
  std::array<std::uint8_t, 18> q4;
};

template <class Array>
void from_hex(const std::string& text, Array& out) {
  ASSERT_EQ(text.size(), 2 * sizeof(out));
  std::array<std::uint8_t, sizeof(Array)> bytes;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::uint8_t>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
  }
  std::memcpy(out.data(), bytes.data(), bytes.size());
}

std::vector<Group> groups() {
  std::ifstream file(KVSPAN_SOURCE_DIR "/tests/codec/fixtures/llama_blocks.txt");
  std::vector<Group> all;
  for (std::string x, q8, q4; file >> x >> q8 >> q4;) {
    Group& group = all.emplace_back();
    from_hex(x, group.x);
    from_hex(q8, group.q8);
    from_hex(q4, group.q4);
  }
  return all;
}

std::uint16_t half_bits(const std::uint8_t* p) {
  return static_cast<std::uint16_t>(p[0] | p[1] << 8);
}

TEST(LlamaBlocks, ScalesAndCodesAreGgufs) {
  const auto all = groups();
  ASSERT_EQ(all.size(), 52u);
  for (const Group& group : all) {
    std::array<std::int8_t, 32> codes;
    EXPECT_EQ(quantize_q8_0(group.x.data(), 32, codes.data()).bits, half_bits(group.q8.data()));
    for (int i = 0; i < 32; ++i) {
      EXPECT_EQ(codes[i], static_cast<std::int8_t>(group.q8[2 + i])) << group.x[i];
    }
    EXPECT_EQ(quantize_q4_0(group.x.data(), 32, codes.data()).bits, half_bits(group.q4.data()));
    for (int i = 0; i < 32; ++i) {
      const int nibble = group.q4[2 + i % 16] >> 4 * (i / 16) & 15;
      EXPECT_EQ(codes[i], nibble - 8) << group.x[i];
    }
  }
}

// Many groups in a row through the codec: the same numbers come out as llama.cpp would read.
TEST(LlamaBlocks, TheCodecStoresAndReadsThem) {
  const auto all = groups();
  std::vector<float> x;
  for (const Group& group : all) x.insert(x.end(), group.x.begin(), group.x.end());
  const std::size_t cols = 4 * 32, rows = x.size() / cols;
  ASSERT_EQ(rows * cols, x.size());
  for (const CodecSpec& spec : {q8_0_spec(), q4_0_spec()}) {
    const Codec codec = Codec::create(spec, cols).value();
    std::vector<std::byte> payload(codec.encoded_size(rows).payload_bytes);
    std::vector<std::byte> scales(codec.encoded_size(rows).scale_bytes);
    ASSERT_TRUE(codec.encode({x.data(), {rows, cols}}, payload, scales));
    std::vector<float> back(x.size());
    codec.decode(payload, scales, 0, {back.data(), {rows, cols}});
    for (std::size_t g = 0; g < all.size(); ++g) {
      for (std::size_t i = 0; i < 32; ++i) {
        const bool q8 = spec == q8_0_spec();
        const Half d{half_bits(q8 ? all[g].q8.data() : all[g].q4.data())};
        const int code = q8 ? static_cast<std::int8_t>(all[g].q8[2 + i])
                            : (all[g].q4[2 + i % 16] >> 4 * (i / 16) & 15) - 8;
        EXPECT_EQ(back[32 * g + i], to_float(d) * static_cast<float>(code));
      }
    }
  }
}

}  // namespace
}  // namespace kvspan
