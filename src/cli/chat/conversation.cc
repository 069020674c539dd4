// SPDX-License-Identifier: Apache-2.0
#include "cli/chat/conversation.h"
#include "cli/calibration.h"

#include <algorithm>
#include <utility>

#include "base/fail.h"
#include "cli/chat/make_room.h"
#include "cli/chat/prompt.h"
#include "cli/output/progress_bar.h"
#include "cli/terminal/text_input.h"

namespace kvspan::cli {

Conversation::Conversation(Session& session, std::unique_ptr<Sampler> sampler,
                           GenerateOptions options, const std::string& system, bool shifts)
    : session_(session),
      sampler_(std::move(sampler)),
      options_(std::move(options)),
      shifts_(shifts) {
  if (!system.empty()) messages_.push_back({"system", system});
}

void Conversation::keep_common_part(std::span<const Token> tokens) {
  const std::size_t keep = std::min(common_prefix(held_, tokens), tokens.size() - 1);
  // A method that cannot forget its latest tokens starts over.
  if (!session_.cache->truncate(static_cast<std::int32_t>(keep))) session_.cache->clear();
  held_.resize(static_cast<std::size_t>(session_.cache->tokens()));
}

std::vector<ChatMessage> Conversation::visible() const {
  std::vector<ChatMessage> shown;
  std::size_t skipped = 0;
  for (const ChatMessage& message : messages_) {
    if (message.role != "system" && skipped++ < dropped_) continue;
    shown.push_back(message);
  }
  return shown;
}

bool Conversation::drop_oldest() {
  const auto spoken = static_cast<std::size_t>(std::count_if(
      messages_.begin(), messages_.end(), [](const auto& m) { return m.role != "system"; }));
  // A turn ends where the next question begins.
  const std::size_t first = messages_.size() - spoken;
  std::size_t next = dropped_ + 1;
  while (next < spoken && messages_[first + next].role != "user") ++next;
  if (next >= spoken) return false;
  dropped_ = next;
  return true;
}

Result<std::vector<Token>> Conversation::encode_within(std::size_t most, bool open_answer) {
  for (;;) {
    KVSPAN_TRY(std::vector<Token> tokens,
               encode_conversation(*session_.tokenizer, visible(), open_answer));
    if (tokens.size() <= most || !drop_oldest()) return tokens;
  }
}

Result<Answer> Conversation::answer(const Stream& stream) {
  const auto context = static_cast<std::size_t>(session_.context);
  const std::size_t before = dropped_;
  KVSPAN_TRY(std::vector<Token> tokens,
             encode_conversation(*session_.tokenizer, visible(), /*open_answer=*/true));
  const std::size_t room = room_for_answer(session_.context, options_.max_tokens);
  // Once turns have to go, so many do that the next turns need not drop any.
  if (tokens.size() + room > context) {
    KVSPAN_TRY(tokens, encode_within(shortened_length(session_.context), /*open_answer=*/true));
  }
  if (tokens.size() > context) {
    dropped_ = before;
    return fail(ErrorCode::kOutOfBudget,
                "this message alone has {} tokens with the system message, the context holds {}",
                tokens.size(), context);
  }
  const auto shorten = [&](std::span<const Token> said) -> Result<std::vector<Token>> {
    const std::size_t most = shortened_length(session_.context);
    const std::size_t questions = said.size() < most ? most - said.size() : 0;
    KVSPAN_TRY(std::vector<Token> all, encode_within(questions, /*open_answer=*/true));
    all.insert(all.end(), said.begin(), said.end());
    return without_middle(all, most);
  };
  keep_common_part(tokens);
  Result<Answer> answer = answer_prompt(session_, tokens, *sampler_, options_, stream,
                                        shifts_ ? Shorten(shorten) : Shorten());
  if (answer) {
    held_ = answer->held;
    answer->dropped_messages = dropped_ - before;
  } else {
    held_.clear();
    session_.cache->clear();
  }
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

Status Conversation::undo() {
  const auto question = std::find_if(messages_.rbegin(), messages_.rend(),
                                     [](const ChatMessage& m) { return m.role == "user"; });
  if (question == messages_.rend()) {
    return fail(ErrorCode::kInvalidArgument, "there is nothing to take back");
  }
  messages_.erase(std::next(question).base(), messages_.end());
  const auto spoken = static_cast<std::size_t>(std::count_if(
      messages_.begin(), messages_.end(), [](const auto& m) { return m.role != "system"; }));
  dropped_ = std::min(dropped_, spoken);
  return {};
}

void Conversation::set_system(const std::string& text) {
  std::erase_if(messages_, [](const ChatMessage& m) { return m.role == "system"; });
  if (!text.empty()) messages_.insert(messages_.begin(), {"system", text});
}

void Conversation::clear() {
  dropped_ = 0;
  std::erase_if(messages_, [](const ChatMessage& m) { return m.role != "system"; });
  session_.cache->clear();
  held_.clear();
}

Status Conversation::reread() {
  if (messages_.empty()) return {};
  KVSPAN_TRY(const std::vector<Token> tokens,
             encode_within(static_cast<std::size_t>(session_.context), /*open_answer=*/false));
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
  std::size_t dropped = std::exchange(dropped_, 0);
  Status status = reread();
  // Cancelled halfway, the rest is read with the next turn.
  if (status || status.error().code == ErrorCode::kCancelled) return status;
  std::swap(messages, messages_);
  std::swap(dropped, dropped_);
  return status;
}

void Conversation::adopt(PromptCache saved) {
  session_.cache = std::move(saved.cache);
  held_ = std::move(saved.tokens);
}

Status Conversation::use_recipe(const std::string& recipe) {
  KVSPAN_CHECK_OK(session_.use_recipe(recipe));
  held_.clear();
  return reread();
}

}  // namespace kvspan::cli
