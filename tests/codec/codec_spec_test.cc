// SPDX-License-Identifier: Apache-2.0
#include "codec/codec_spec.h"

#include <gtest/gtest.h>

#include "codec/packed_rows.h"

namespace kvspan {
namespace {

TEST(CodecSpec, CanonicalTextsParseToThemselves) {
  for (const char* text :
       {"f32", "f16", "bf16", "int8:row,sym", "int4:group=32,sym", "int3:tile=64,asym",
        "int2:tile=64x16,sym,scale=f32", "int2:column=32,asym", "int8:column,sym",
        "int8:head=64,sym", "int8:tensor,asym,scale=f32", "int4:row,normal",
        "int2:row,normal,scale=f32", "q8_0", "q4_0", "mixed:8x1,4x64,0x3,2x16"}) {
    const auto spec = parse_codec_spec(text);
    ASSERT_TRUE(spec) << spec.error().message;
    EXPECT_EQ(to_string(*spec), text);
    EXPECT_TRUE(check_codec_spec(*spec)) << text;
  }
}

TEST(CodecSpec, DefaultsAndOtherOrdersBecomeCanonical) {
  const std::pair<const char*, const char*> texts[] = {
      {"int8", "int8:row,sym"},
      {"int4:asym", "int4:row,asym"},
      {"int4:sym,group=32", "int4:group=32,sym"},
      {"int4:scale=f16,asym,tensor", "int4:tensor,asym"},
      {"int8:tile=1x32", "int8:group=32,sym"},
      {"int8:tile=7x1", "int8:column=7,sym"},
  };
  for (const auto& [text, canonical] : texts) {
    EXPECT_EQ(to_string(parse_codec_spec(text).value()), canonical);
  }
}

TEST(CodecSpec, EveryCombinationOfFieldsComesBackFromItsText) {
  for (const auto kind : {CodecKind::kInt8, CodecKind::kInt4, CodecKind::kInt3, CodecKind::kInt2}) {
    for (const std::uint32_t rows : {0u, 1u, 2u, 64u}) {
      for (const std::uint32_t cols : {0u, 1u, 5u, 32u}) {
        for (const auto rule : {ScaleRule::kSymmetric, ScaleRule::kAsymmetric}) {
          for (const auto scale : {ScaleType::kF16, ScaleType::kF32}) {
            const CodecSpec spec{kind, rows, cols, rule, scale};
            EXPECT_EQ(parse_codec_spec(to_string(spec)).value(), spec) << to_string(spec);
          }
        }
      }
    }
  }
}

TEST(CodecSpec, ErrorsNameTheWordAndWhatIsAllowed) {
  const std::pair<const char*, const char*> texts[] = {
      {"int5", "unknown kind 'int5'"},
      {"mixed", "run ''"},
      {"mixed:3x16", "run '3x16'"},
      {"mixed:4x16,2x0", "run '2x0'"},
      {"", "unknown kind ''"},
      {"f16:row", "f16 takes no options"},
      {"q8_0:row", "unknown kind 'q8_0'"},
      {"int4:group=0", "option 'group=0'"},
      {"int4:group=", "option 'group='"},
      {"int4:group", "option 'group'"},
      {"int4:group=-3", "option 'group=-3'"},
      {"int4:group=99999999999", "option 'group=99999999999'"},
      {"int4:tile=4x", "option 'tile=4x'"},
      {"int4:tile=4x4x4", "option 'tile=4x4x4'"},
      {"int4:row=", "option 'row='"},
      {"int4:row=2", "option 'row=2'"},
      {"int4:scale=f64", "option 'scale=f64'"},
      {"int4:sym=1", "option 'sym=1'"},
      {"int4:", "option ''"},
      {"int4:sym,", "option ''"},
      {"int4:sym,asym", "'asym' says again"},
      {"int4:row,group=32", "'group=32' says again"},
  };
  for (const auto& [text, part] : texts) {
    const auto spec = parse_codec_spec(text);
    ASSERT_FALSE(spec) << text;
    EXPECT_EQ(spec.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(spec.error().message.find(part), std::string::npos) << spec.error().message;
  }
}

TEST(CodecSpec, FieldsThatNameNoCodecAreRefused) {
  EXPECT_FALSE(check_codec_spec({CodecKind::kF16, 1, 32}));
  EXPECT_FALSE(check_codec_spec({CodecKind::kInt3, 1, 32, ScaleRule::kLlama}));
  EXPECT_FALSE(parse_codec_spec("int8:normal"));
  EXPECT_FALSE(parse_codec_spec("int2:group=32,normal"));
  EXPECT_FALSE(check_codec_spec({CodecKind::kInt8, 1, 64, ScaleRule::kLlama}));
}

// Sizes worked out by hand, the last of each kind with tails.
TEST(EncodedSize, CountsEveryByteOfPayloadAndScales) {
  const auto size = [](const char* text, std::size_t rows, std::size_t cols) {
    return encoded_size(parse_codec_spec(text).value(), rows, cols);
  };
  EXPECT_EQ(size("f32", 3, 5), (EncodedSize{60, 0}));
  EXPECT_EQ(size("bf16", 3, 5), (EncodedSize{30, 0}));
  EXPECT_EQ(size("q4_0", 10, 64), (EncodedSize{320, 40}));  // 4.5 bits
  EXPECT_EQ(size("q8_0", 10, 64), (EncodedSize{640, 40}));  // 8.5 bits
  EXPECT_EQ(size("int3:group=64,sym", 10, 64), (EncodedSize{240, 20}));
  EXPECT_EQ(size("int2:column=32,asym", 40, 64), (EncodedSize{640, 2 * 64 * 4}));
  EXPECT_EQ(size("int4:tile=16x20,asym,scale=f32", 33, 50), (EncodedSize{33 * 25, 3 * 3 * 8}));
  EXPECT_EQ(size("int8:head=64,sym", 512, 192), (EncodedSize{512 * 192, 6}));
  EXPECT_EQ(size("int8:tensor,sym", 512, 192), (EncodedSize{512 * 192, 2}));
  EXPECT_EQ(size("int4:row,sym", 1, 37), (EncodedSize{16 + 3, 2}));
  EXPECT_EQ(size("int3:row,sym", 1, 37), (EncodedSize{12 + 2 + 1, 2}));
  EXPECT_EQ(size("int3:row,sym", 1, 63), (EncodedSize{12 + 8 + 4, 2}));
  EXPECT_EQ(size("int2:row,sym", 1, 37), (EncodedSize{8 + 2, 2}));
  EXPECT_EQ(size("int8:tensor,sym", 0, 64), (EncodedSize{0, 0}));
  EXPECT_EQ(packed_bytes(3, 0), 0u);
}

}  // namespace
}  // namespace kvspan
