// SPDX-License-Identifier: Apache-2.0
// Bytes in and out, and the frame around them; the formats that use them test the rest.
#include "base/byte_stream.h"

#include <gtest/gtest.h>

#include "base/byte_frame.h"

namespace kvspan {
namespace {

constexpr FrameFormat kFormat{"sample", "KVSPXYZ", 3};

TEST(ByteStream, WhatIsPutComesBack) {
  ByteWriter out;
  out.put(std::int16_t{-2});
  out.put_text("recipe");
  out.put_text("");
  out.put_bytes(std::as_bytes(std::span("xy", 2)));
  ByteReader in(out.bytes(), "sample");
  EXPECT_EQ(in.get<std::int16_t>("number").value(), -2);
  EXPECT_EQ(in.get_text("text", 6).value(), "recipe");
  EXPECT_EQ(in.get_text("text", 0).value(), "");
  const auto bytes = in.get_bytes("bytes", 2);
  ASSERT_TRUE(bytes);
  EXPECT_EQ((*bytes)[1], std::byte{'y'});
  EXPECT_EQ(in.left(), 0u);
  EXPECT_FALSE(in.get_bytes("bytes", 1));
}

TEST(ByteStream, TextThatIsTooLongIsRefusedBeforeItIsRead) {
  ByteWriter out;
  out.put(std::uint32_t{0xffffffff});
  ByteReader in(out.bytes(), "sample");
  const auto text = in.get_text("recipe", 100);
  ASSERT_FALSE(text);
  EXPECT_EQ(text.error().message,
            "sample: recipe at byte 0 is 4294967295; allowed: up to 100 characters");
  ByteReader again(out.bytes(), "sample");
  EXPECT_FALSE(again.get_text("recipe", 0xffffffff));
}

TEST(ByteFrame, HoldsItsPayloadAndRefusesEveryFlip) {
  ByteWriter out;
  begin_frame(kFormat, 5, out);
  out.put_text("payload");
  end_frame(out);
  auto bytes = out.bytes();
  auto frame = open_frame(kFormat, bytes);
  ASSERT_TRUE(frame);
  EXPECT_EQ(frame->kind, 5u);
  EXPECT_EQ(frame->payload.offset(), kFrameHeaderBytes);
  EXPECT_EQ(frame->payload.get_text("text", 10).value(), "payload");
  EXPECT_EQ(frame->payload.left(), 0u);
  for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    auto damaged = bytes;
    damaged[bit / 8] ^= std::byte{1} << (bit % 8);
    const auto opened = open_frame(kFormat, damaged);
    ASSERT_FALSE(opened) << bit;
    EXPECT_EQ(opened.error().code, ErrorCode::kCorruptData);
  }
  EXPECT_FALSE(open_frame({"sample", "KVSPXYZ", 4}, bytes));
  EXPECT_FALSE(open_frame({"sample", "KVSPXY", 3}, bytes));
}

}  // namespace
}  // namespace kvspan
