// SPDX-License-Identifier: Apache-2.0
// A conversation whose tokens stay in the cache from turn to turn: each turn renders the whole
// conversation anew, keeps the part of the cache that agrees with it token by token, and reads only
// the rest.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cli/chat/answer.h"
#include "cli/session.h"

namespace kvspan::cli {

class Conversation {
 public:
  using Stream = std::function<void(std::string_view)>;

  // `session` must outlive the conversation. An empty system message is none.
  Conversation(Session& session, std::unique_ptr<Sampler> sampler, GenerateOptions options,
               const std::string& system);

  const std::vector<ChatMessage>& messages() const noexcept { return messages_; }

  // Adds the user's message and the answer to it. On failure (no room left in the context, an
  // engine error) and when cancelled before the answer began, the message is taken back.
  Result<Answer> ask(const std::string& text, const Stream& stream);
  // Drops the last answer and gives another one. Fails when there is none.
  Result<Answer> answer_again(const Stream& stream);

  // Forgets all but the system message.
  void clear();
  // Replaces the conversation and reads it into the cache.
  Status restore(std::vector<ChatMessage> messages);
  // Replaces the cache and reads the conversation into the new one.
  Status use_recipe(const std::string& recipe);

 private:
  Result<Answer> answer(const Stream& stream);
  Status reread();
  // Forgets what the cache holds beyond its common beginning with `tokens`, and at least the last
  // token of those, whose logits are needed.
  void keep_common_part(std::span<const Token> tokens);

  Session& session_;
  std::unique_ptr<Sampler> sampler_;
  GenerateOptions options_;
  std::vector<ChatMessage> messages_;
  std::vector<Token> held_;  // what the cache holds
};

}  // namespace kvspan::cli
