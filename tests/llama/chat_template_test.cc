// SPDX-License-Identifier: Apache-2.0
// Rendered conversations against llama_chat_apply_template, which knows some templates by heart.
#include "llama/chat_template.h"

#include <gtest/gtest.h>
#include <llama.h>

#include <fstream>
#include <sstream>

#include "llama/tokenizer.h"

namespace kvspan::testing {
namespace chat_template_test {

const std::string kModel = std::string(KVSPAN_SOURCE_DIR "/data/models/stories260K.gguf");
const std::vector<ChatMessage> kTalk{{"system", "Be brief."},
                                     {"user", "Hello"},
                                     {"assistant", "Hi."},
                                     {"user", "Who is {{ Lily }}?"}};

std::string template_file(const std::string& name) {
  std::ifstream in(std::string(KVSPAN_TEMPLATES "/") + name + ".jinja");
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

std::string by_heart(const std::string& choice, std::span<const ChatMessage> talk,
                     bool open_answer) {
  std::vector<llama_chat_message> chat;
  for (const ChatMessage& m : talk) chat.push_back({m.role.c_str(), m.content.c_str()});
  std::string text(4096, '\0');
  const std::int32_t length =
      llama_chat_apply_template(choice.c_str(), chat.data(), chat.size(), open_answer, text.data(),
                                static_cast<std::int32_t>(text.size()));
  text.resize(static_cast<std::size_t>(std::max(length, 0)));
  return text;
}

TEST(ChatTemplate, JinjaGivesWhatLibllamaKnowsByHeart) {
  const std::span<const ChatMessage> all(kTalk);
  for (const auto& [name, talk] :
       {std::pair{"Qwen-Qwen2.5-7B-Instruct", all}, std::pair{"Qwen-Qwen3-0.6B", all},
        std::pair{"ibm-granite-granite-4.0", all},
        std::pair{"google-gemma-2-2b-it", all.subspan(1)}}) {  // has no system messages
    const std::string jinja = template_file(name);
    ASSERT_FALSE(jinja.empty()) << name;
    const auto tokenizer = Tokenizer::open(kModel, jinja);
    ASSERT_TRUE(tokenizer) << tokenizer.error().message;
    EXPECT_TRUE((*tokenizer)->has_chat_template());
    for (const bool open_answer : {true, false}) {
      const auto text = (*tokenizer)->apply_chat_template(talk, open_answer);
      ASSERT_TRUE(text) << name << ": " << text.error().message;
      EXPECT_EQ(*text, by_heart(jinja, talk, open_answer)) << name;
    }
  }
}

TEST(ChatTemplate, ANameIsOneThatLibllamaKnows) {
  for (const char* name : {"chatml", "gemma", "llama2", "mistral-v7"}) {
    const auto tokenizer = Tokenizer::open(kModel, name);
    ASSERT_TRUE(tokenizer) << tokenizer.error().message;
    EXPECT_EQ((*tokenizer)->apply_chat_template(kTalk, true).value(), by_heart(name, kTalk, true))
        << name;
  }
}

TEST(ChatTemplate, BeginOfTextIsLeftToTheTokenizer) {
  const auto tokenizer =
      Tokenizer::open(kModel, "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}");
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  const std::vector<ChatMessage> one{{"user", "Hello"}};
  EXPECT_EQ((*tokenizer)->apply_chat_template(one, true).value(), "Hello");
}

TEST(ChatTemplate, WhatIsNoneIsRefusedWithTheReason) {
  const auto mistyped = Tokenizer::open(kModel, "chatmll");
  ASSERT_FALSE(mistyped);
  EXPECT_EQ(mistyped.error().message.rfind("chat-template 'chatmll' is not known; allowed: ", 0),
            0u);
  EXPECT_TRUE(mistyped.error().message.ends_with(", did you mean 'chatml'?"));
  const auto broken = Tokenizer::open(kModel, "{{ messages[ }}");
  ASSERT_FALSE(broken);
  EXPECT_EQ(broken.error().message.rfind("chat-template '{{ messages[ }}' cannot be read: ", 0), 0u)
      << broken.error().message;
}

TEST(ChatTemplate, ARefusalCarriesTheTemplatesOwnWords) {
  const auto tokenizer = Tokenizer::open(kModel, "{{ raise_exception('only one turn') }}");
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  const auto text = (*tokenizer)->apply_chat_template(kTalk, true);
  ASSERT_FALSE(text);
  EXPECT_NE(text.error().message.find("only one turn"), std::string::npos) << text.error().message;
}

TEST(ChatTemplate, AModelMayHaveNone) {
  const auto tokenizer = Tokenizer::open(kModel).value();
  EXPECT_FALSE(tokenizer->has_chat_template());
  EXPECT_FALSE(tokenizer->apply_chat_template(kTalk, true));
}

}  // namespace chat_template_test
}  // namespace kvspan::testing
