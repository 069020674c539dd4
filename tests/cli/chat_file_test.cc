// SPDX-License-Identifier: Apache-2.0
#include "cli/chat/chat_file.h"

#include <gtest/gtest.h>

namespace kvspan::cli {
namespace {

TEST(ChatFile, ASavedConversationReadsBackEqual) {
  const std::vector<ChatMessage> messages{
      {"system", "Be brief."}, {"user", "\xc3\x84pfel \"\\\n?"}, {"assistant", ""}};
  const auto back = chat_from_json(chat_to_json(messages, "smollm2"));
  ASSERT_TRUE(back) << back.error().message;
  ASSERT_EQ(back->size(), messages.size());
  for (std::size_t i = 0; i < messages.size(); ++i) {
    EXPECT_EQ((*back)[i].role, messages[i].role);
    EXPECT_EQ((*back)[i].content, messages[i].content);
  }
}

TEST(ChatFile, AnythingElseIsRefusedWithAReason) {
  const auto reason = [](const char* text) {
    const auto result = chat_from_json(text);
    return result ? std::string("accepted") : result.error().message;
  };
  EXPECT_EQ(reason(""), "not a saved conversation: it is not JSON");
  EXPECT_EQ(reason("{\"format\":\"kvspan-chat\",\"version\":1,\"messages\":[{\"role\":\"user\","),
            "not a saved conversation: it is not JSON");
  EXPECT_EQ(reason("[]"), "not a saved conversation: \"format\" is not \"kvspan-chat\"");
  EXPECT_EQ(reason("{\"format\":1}"),
            "not a saved conversation: \"format\" is not \"kvspan-chat\"");
  EXPECT_EQ(reason("{\"format\":\"kvspan-chat\",\"version\":2}"),
            "not a saved conversation: \"version\" is not 1");
  EXPECT_EQ(reason("{\"format\":\"kvspan-chat\",\"version\":1,\"messages\":{}}"),
            "not a saved conversation: \"messages\" is not an array");
  EXPECT_EQ(reason("{\"format\":\"kvspan-chat\",\"version\":1,\"messages\":[7]}"),
            "not a saved conversation: messages[0] has no role \"system\", \"user\" or "
            "\"assistant\"");
  EXPECT_EQ(reason("{\"format\":\"kvspan-chat\",\"version\":1,\"messages\":[{\"role\":\"user\"}]}"),
            "not a saved conversation: messages[0] has no text as \"content\"");
  EXPECT_EQ(reason("{\"format\":\"kvspan-chat\",\"version\":1,\"messages\":"
                   "[{\"role\":\"user\",\"content\":\"\\u0000\"}]}"),
            "not a saved conversation: messages[0] has a NUL");
}

TEST(ChatFile, ListsNestedWithoutEndAreRefused) {
  const std::string deep = std::string(1'000'000, '[') + std::string(1'000'000, ']');
  for (const std::string& text : {"{\"format\":" + deep + "}",
                                 "{\"format\":\"kvspan-chat\",\"version\":1,\"messages\":" + deep + "}"}) {
    EXPECT_FALSE(chat_from_json(text));
  }
}

}  // namespace
}  // namespace kvspan::cli
