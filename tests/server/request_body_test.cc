// SPDX-License-Identifier: Apache-2.0
#include "server/request_body.h"

#include <gtest/gtest.h>

#include <string>

namespace kvspan::server {
namespace {

std::string nested(int levels) {
  return std::string(static_cast<std::size_t>(levels), '[') + std::string(static_cast<std::size_t>(levels), ']');
}

TEST(RequestBody, IsRefusedBeyondSomeLevels) {
  EXPECT_TRUE(check_nesting(nested(kMostNesting)));
  const Status deeper = check_nesting(nested(kMostNesting + 1));
  ASSERT_FALSE(deeper);
  EXPECT_EQ(deeper.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(deeper.error().message.find("500"), std::string::npos);
  std::string objects;
  for (int i = 0; i <= kMostNesting; ++i) objects += R"({"a":)";
  EXPECT_FALSE(check_nesting(objects)) << "though it is cut short";
}

TEST(RequestBody, BracketsInTextsAndNextToEachOtherAreNoLevels) {
  EXPECT_TRUE(check_nesting("{\"prompt\": \"" + std::string(2000, '[') + "\"}"));
  EXPECT_TRUE(check_nesting("[\"\\\"" + std::string(2000, '[') + "\"]")) << "after an escaped quote";
  std::string flat = "[";
  for (int i = 0; i < 2000; ++i) flat += "[],";
  EXPECT_TRUE(check_nesting(flat + "0]"));
  EXPECT_FALSE(check_nesting("[\"a\\\\\"," + nested(kMostNesting) + "]")) << "after a text that ends in a backslash";
}

}  // namespace
}  // namespace kvspan::server
