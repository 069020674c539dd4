// SPDX-License-Identifier: Apache-2.0
// A conversation must give what a fresh cache would give, while reading only what is new. On
// stories260K, which has no chat template, so that messages are continued as plain text.
#include "cli/chat/conversation.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "cli/chat/prompt.h"
#include "cli/terminal/interrupt.h"

namespace kvspan::cli {
namespace {

constexpr const char* kModel = KVSPAN_SOURCE_DIR "/data/models/stories260K.gguf";

Session open_stories(std::int64_t context = 0) {
  ModelFlags flags;
  flags.model = kModel;
  flags.context = context;
  auto session = open_session(flags);
  EXPECT_TRUE(session) << session.error().message;
  return std::move(*session);
}

Conversation start(Session& session, std::int32_t max_tokens) {
  auto sampler = Sampler::make({.temperature = 0.0f}, *session.engine);
  EXPECT_TRUE(sampler);
  GenerateOptions options;
  options.max_tokens = max_tokens;
  options.context = session.context;
  return Conversation(session, std::move(*sampler), options, "");
}

// The greedy answer to the conversation so far, from an empty cache.
std::string fresh_answer(std::span<const ChatMessage> messages, std::int32_t max_tokens) {
  Session session = open_stories();
  auto tokens = encode_conversation(*session.tokenizer, messages, true);
  auto sampler = Sampler::make({.temperature = 0.0f}, *session.engine);
  GenerateOptions options;
  options.max_tokens = max_tokens;
  auto answer = answer_prompt(session, *tokens, **sampler, options, nullptr);
  EXPECT_TRUE(answer) << answer.error().message;
  return answer->generation.text;
}

TEST(Conversation, LaterTurnsReadOnlyWhatIsNewAndAnswerAsAFreshCacheDoes) {
  Session session = open_stories();
  Conversation conversation = start(session, 30);
  std::string streamed;
  const auto stream = [&](std::string_view piece) { streamed += piece; };
  auto first = conversation.ask("Once upon a time", stream);
  ASSERT_TRUE(first) << first.error().message;
  EXPECT_EQ(first->read_tokens, first->prompt_tokens);
  EXPECT_EQ(streamed, first->generation.text);

  auto second = conversation.ask(" Then Lily said", nullptr);
  ASSERT_TRUE(second) << second.error().message;
  EXPECT_LT(second->read_tokens, second->prompt_tokens / 2);
  const auto& messages = conversation.messages();
  ASSERT_EQ(messages.size(), 4u);
  EXPECT_EQ(second->generation.text, fresh_answer(std::span(messages).first(3), 30));
  EXPECT_EQ(messages[3].content, second->generation.text);
}

TEST(Conversation, AnotherAnswerReplacesTheLast) {
  Session session = open_stories();
  Conversation conversation = start(session, 20);
  EXPECT_FALSE(conversation.answer_again(nullptr));
  auto first = conversation.ask("Once upon a time", nullptr);
  ASSERT_TRUE(first);
  auto again = conversation.answer_again(nullptr);
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(again->read_tokens, 1u);  // the last token, for its logits
  EXPECT_EQ(again->generation.text, first->generation.text);
  EXPECT_EQ(conversation.messages().size(), 2u);
}

TEST(Conversation, AMessageThatDoesNotFitIsTakenBack) {
  Session session = open_stories(32);
  Conversation conversation = start(session, 4);
  ASSERT_TRUE(conversation.ask("Once upon a time", nullptr));
  std::string long_text;
  for (int i = 0; i < 40; ++i) long_text += " and so on";
  const auto refused = conversation.ask(long_text, nullptr);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kOutOfBudget);
  EXPECT_NE(refused.error().message.find("the context holds 32"), std::string::npos);
  EXPECT_EQ(conversation.messages().size(), 2u);
  EXPECT_TRUE(conversation.ask(" she", nullptr));
}

TEST(Conversation, AFullContextDropsTheOldestTurnsAndKeepsTheSystemMessage) {
  Session session = open_stories(96);
  Conversation conversation = start(session, 20);
  conversation.set_system("Be kind.");
  std::size_t dropped = 0;
  for (int turn = 0; turn < 8; ++turn) {
    auto answer = conversation.ask(" One day", nullptr);
    ASSERT_TRUE(answer) << answer.error().message;
    EXPECT_EQ(answer->generation.tokens.size(), 20u);
    EXPECT_LE(answer->cache_tokens, 96);
    EXPECT_EQ(answer->held.size(), static_cast<std::size_t>(answer->cache_tokens));
    dropped += answer->dropped_messages;
  }
  EXPECT_EQ(conversation.messages().size(), 17u);  // nothing is lost of what was said
  EXPECT_GT(dropped, 4u);
  EXPECT_EQ(dropped, conversation.dropped());
  // What was dropped makes no difference: a fresh cache with the rest answers the same.
  const auto& all = conversation.messages();
  std::vector<ChatMessage> rest{all.front()};
  rest.insert(rest.end(), all.begin() + 1 + static_cast<long>(dropped), all.end() - 1);
  EXPECT_EQ(all.back().content, fresh_answer(rest, 20));
}

TEST(Conversation, AnAnswerLongerThanTheContextGoesOn) {
  Session session = open_stories(32);
  Conversation conversation = start(session, 100);
  std::string streamed;
  auto answer =
      conversation.ask("Once upon a time", [&](std::string_view piece) { streamed += piece; });
  ASSERT_TRUE(answer) << answer.error().message;
  EXPECT_EQ(answer->generation.tokens.size(), 100u);
  EXPECT_GT(answer->shifts, 3u);
  EXPECT_LE(answer->cache_tokens, 32);
  EXPECT_EQ(answer->held.size(), static_cast<std::size_t>(answer->cache_tokens));
  // What the cache holds are the latest tokens but the last, after the beginning.
  const auto& said = answer->generation.tokens;
  EXPECT_TRUE(std::equal(answer->held.end() - 8, answer->held.end(), said.end() - 9));
  EXPECT_EQ(streamed, answer->generation.text);
}

TEST(Conversation, TheLastQuestionCanBeTakenBack) {
  Session session = open_stories();
  Conversation conversation = start(session, 10);
  EXPECT_FALSE(conversation.undo());
  conversation.set_system("Be kind.");
  ASSERT_TRUE(conversation.ask("Once upon a time", nullptr));
  ASSERT_TRUE(conversation.ask(" Then", nullptr));
  ASSERT_TRUE(conversation.undo());
  EXPECT_EQ(conversation.messages().size(), 3u);
  auto next = conversation.ask(" One day", nullptr);
  ASSERT_TRUE(next);
  EXPECT_EQ(next->generation.text, fresh_answer(std::span(conversation.messages()).first(4), 10));
}

TEST(Conversation, WithoutShiftsAFullContextEndsTheAnswer) {
  Session session = open_stories(32);
  auto sampler = Sampler::make({.temperature = 0.0f}, *session.engine);
  ASSERT_TRUE(sampler);
  GenerateOptions options;
  options.max_tokens = 100;
  options.context = session.context;
  Conversation conversation(session, std::move(*sampler), options, "", /*shifts=*/false);
  auto answer = conversation.ask("Once upon a time", nullptr);
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->generation.reason, StopReason::kContext);
  EXPECT_EQ(answer->cache_tokens, 32);
}

TEST(Conversation, AnotherRecipeReadsTheConversationAgain) {
  Session session = open_stories();
  Conversation conversation = start(session, 20);
  ASSERT_TRUE(conversation.ask("Once upon a time", nullptr));
  EXPECT_FALSE(conversation.use_recipe("nonsense:x=1"));
  const std::int32_t before = session.cache->tokens();
  ASSERT_TRUE(conversation.use_recipe("full"));
  // The answer's last token was not in the cache; in the conversation it is.
  EXPECT_EQ(session.cache->tokens(), before + 1);
  auto next = conversation.ask(" One day", nullptr);
  ASSERT_TRUE(next);
  EXPECT_EQ(next->generation.text, fresh_answer(std::span(conversation.messages()).first(3), 20));
}

TEST(Conversation, ARestoredConversationGoesOnAsTheOldOne) {
  Session session = open_stories();
  Conversation conversation = start(session, 20);
  ASSERT_TRUE(conversation.ask("Once upon a time", nullptr));
  const std::vector<ChatMessage> saved = conversation.messages();
  conversation.clear();
  EXPECT_TRUE(conversation.messages().empty());
  EXPECT_EQ(session.cache->tokens(), 0);
  ASSERT_TRUE(conversation.restore(saved));
  EXPECT_GT(session.cache->tokens(), 20);
  auto next = conversation.ask(" One day", nullptr);
  ASSERT_TRUE(next);
  EXPECT_EQ(next->generation.text, fresh_answer(std::span(conversation.messages()).first(3), 20));
}

TEST(Conversation, CancelledWhileReadingTheMessageIsTakenBack) {
  Session session = open_stories();
  Conversation conversation = start(session, 20);
  interrupted() = true;
  auto answer = conversation.ask("Once upon a time", nullptr);
  interrupted() = false;
  ASSERT_TRUE(answer) << answer.error().message;
  EXPECT_EQ(answer->generation.reason, StopReason::kCancelled);
  EXPECT_TRUE(conversation.messages().empty());
  EXPECT_TRUE(conversation.ask("Once upon a time", nullptr));
}

TEST(Conversation, CancelledWhileAnsweringKeepsWhatWasSaid) {
  Session session = open_stories();
  Conversation conversation = start(session, 50);
  int pieces = 0;
  auto answer = conversation.ask("Once upon a time", [&](std::string_view) {
    if (++pieces == 5) interrupted() = true;
  });
  interrupted() = false;
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->generation.reason, StopReason::kCancelled);
  ASSERT_EQ(conversation.messages().size(), 2u);
  EXPECT_EQ(conversation.messages()[1].content, answer->generation.text);
  auto next = conversation.ask(" and", nullptr);
  ASSERT_TRUE(next);
  EXPECT_EQ(next->generation.text, fresh_answer(std::span(conversation.messages()).first(3), 50));
}

}  // namespace
}  // namespace kvspan::cli
