// SPDX-License-Identifier: Apache-2.0
#include "cli/chat/prompt.h"

#include <algorithm>

#include "base/fail.h"

namespace kvspan::cli {

Result<std::vector<Token>> encode_prompt(const Tokenizer& tokenizer, const std::string& text) {
  return tokenizer.encode(text, {.add_special = true, .parse_special = true});
}

Result<std::vector<Token>> encode_question(const Tokenizer& tokenizer, const std::string& text,
                                           const std::string& system, bool raw) {
  if (raw || !tokenizer.has_chat_template()) {
    if (!system.empty()) {
      return fail(ErrorCode::kInvalidArgument, "--system needs a chat template, and {}",
                  raw ? "--raw does without one" : "this model has none");
    }
    return encode_prompt(tokenizer, text);
  }
  std::vector<ChatMessage> messages;
  if (!system.empty()) messages.push_back({"system", system});
  messages.push_back({"user", text});
  return encode_conversation(tokenizer, messages, /*open_answer=*/true);
}

Result<std::vector<Token>> encode_conversation(const Tokenizer& tokenizer,
                                               std::span<const ChatMessage> messages,
                                               bool open_answer) {
  std::string text;
  if (tokenizer.has_chat_template()) {
    KVSPAN_TRY(text, tokenizer.apply_chat_template(messages, open_answer));
  } else {
    for (const ChatMessage& message : messages) text += message.content;
  }
  return encode_prompt(tokenizer, text);
}

std::size_t common_prefix(std::span<const Token> a, std::span<const Token> b) noexcept {
  const std::size_t most = std::min(a.size(), b.size());
  const auto [end, other] =
      std::mismatch(a.begin(), a.begin() + static_cast<long>(most), b.begin());
  return static_cast<std::size_t>(end - a.begin());
}

}  // namespace kvspan::cli
