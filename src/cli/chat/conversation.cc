// SPDX-License-Identifier: Apache-2.0
#include "cli/calibration.h"
#include "cli/chat/conversation.h"

#include <algorithm>

#include "base/fail.h"
#include "cli/chat/prompt.h"
#include "cli/output/progress_bar.h"
#include "cli/terminal/text_input.h"

namespace kvspan::cli {

Conversation::Conversation(Session& session, std::unique_ptr<Sampler> sampler,
                           GenerateOptions options, const std::string& system)
    : session_(session), sampler_(std::move(sampler)), options_(std::move(options)) {
  if (!system.empty()) messages_.push_back({"system", system});
}

void Conversation::keep_common_part(std::span<const Token> tokens) {
  const std::size_t keep = std::min(common_prefix(held_, tokens), tokens.size() - 1);
  // A method that cannot forget its latest tokens starts over.
  if (!session_.cache->truncate(static_cast<std::int32_t>(keep))) session_.cache->clear();
  held_.resize(static_cast<std::size_t>(session_.cache->tokens()));
}

Result<Answer> Conversation::answer(const Stream& stream) {
  KVSPAN_TRY(std::vector<Token> tokens,
             encode_conversation(*session_.tokenizer, messages_, /*open_answer=*/true));
  if (tokens.size() > static_cast<std::size_t>(session_.context)) {
    return fail(ErrorCode::kOutOfBudget,
                "with this message the conversation has {} tokens, the context holds {}; /clear "
                "starts anew",
                tokens.size(), session_.context);
  }
  keep_common_part(tokens);
  Result<Answer> answer = answer_prompt(session_, tokens, *sampler_, options_, stream);
  held_ = std::move(tokens);
  if (answer) {
    const std::vector<Token>& sampled = answer->generation.tokens;
    held_.insert(held_.end(), sampled.begin(), sampled.end());
  }
  held_.resize(static_cast<std::size_t>(session_.cache->tokens()));
  return answer;
}

Result<Answer> Conversation::ask(const std::string& text, const Stream& stream) {
  messages_.push_back({"user", text});
  Result<Answer> result = answer(stream);
  if (result && !result->generation.tokens.empty()) {
    messages_.push_back({"assistant", mended_utf8(result->generation.text)});
  } else {
    messages_.pop_back();
  }
  return result;
}

Result<Answer> Conversation::answer_again(const Stream& stream) {
  if (messages_.empty() || messages_.back().role != "assistant") {
    return fail(ErrorCode::kInvalidArgument, "there is no answer yet");
  }
  ChatMessage old = std::move(messages_.back());
  messages_.pop_back();
  Result<Answer> result = answer(stream);
  if (result && !result->generation.tokens.empty()) {
    old.content = mended_utf8(result->generation.text);
  }
  messages_.push_back(std::move(old));
  return result;
}

void Conversation::clear() {
  std::erase_if(messages_, [](const ChatMessage& m) { return m.role != "system"; });
  session_.cache->clear();
  held_.clear();
}

Status Conversation::reread() {
  if (messages_.empty()) return {};
  KVSPAN_TRY(const std::vector<Token> tokens,
             encode_conversation(*session_.tokenizer, messages_, /*open_answer=*/false));
  if (tokens.empty()) return {};
  KVSPAN_CHECK_OK(check_prompt_length(tokens.size(), session_));
  keep_common_part(tokens);
  const auto unread = std::span(tokens).subspan(held_.size());
  ProgressBar bar("reading", "tokens", unread.size());
  const Status status = session_.engine->prefill(*session_.cache, unread,
                                                 [&](std::size_t done) { bar.update(done); });
  held_ = tokens;
  held_.resize(static_cast<std::size_t>(session_.cache->tokens()));
  return status;
}

Status Conversation::restore(std::vector<ChatMessage> messages) {
  std::swap(messages, messages_);
  Status status = reread();
  // Cancelled halfway, the rest is read with the next turn.
  if (status || status.error().code == ErrorCode::kCancelled) return status;
  std::swap(messages, messages_);
  return status;
}

Status Conversation::use_recipe(const std::string& recipe) {
  KVSPAN_TRY(session_.cache, new_cache(*session_.engine, recipe));
  held_.clear();
  return reread();
}

}  // namespace kvspan::cli
