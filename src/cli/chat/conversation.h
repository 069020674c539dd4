// SPDX-License-Identifier: Apache-2.0
// A conversation whose tokens stay in the cache from turn to turn: each turn renders the whole
// conversation anew, keeps the part of the cache that agrees with it token by token, and reads only
// the rest. A context that is full drops the oldest turns, never the system message; they stay in
// messages().
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cli/chat/answer.h"
#include "cli/prompt_cache.h"
#include "cli/session.h"

namespace kvspan::cli {

class Conversation {
 public:
  using Stream = std::function<void(std::string_view)>;

  // `session` must outlive the conversation. An empty system message is none. `shifts`: an answer
  // goes on where the context is full; else it ends there.
  Conversation(Session& session, std::unique_ptr<Sampler> sampler, GenerateOptions options,
               const std::string& system, bool shifts = true);

  const std::vector<ChatMessage>& messages() const noexcept { return messages_; }
  // Of these, how many of the oldest turns' are no longer in the context.
  std::size_t dropped() const noexcept { return dropped_; }

  // Adds the user's message and the answer to it. Where the context is full the oldest turns are
  // dropped, and in the end the middle of what is left. On failure (a message longer than the
  // context, an engine error) and when cancelled before the answer began, the message is taken
  // back.
  Result<Answer> ask(const std::string& text, const Stream& stream);
  // Drops the last answer and gives another one. Fails when there is none.
  Result<Answer> answer_again(const Stream& stream);

  // Forgets all but the system message.
  void clear();
  // Takes the last question and its answer away. Fails when there is none.
  Status undo();
  // Replaces the system message; "" takes it away. What follows it is read again with the next
  // turn.
  void set_system(const std::string& text);
  // Replaces the conversation and reads it into the cache.
  Status restore(std::vector<ChatMessage> messages);
  // What the cache holds; and a cache that was saved in its place, for restore() to go on from.
  const std::vector<Token>& held() const noexcept { return held_; }
  void adopt(PromptCache saved);
  // Replaces the cache and reads the conversation into the new one.
  Status use_recipe(const std::string& recipe);

 private:
  Result<Answer> answer(const Stream& stream);
  Status reread();
  // The messages that are in the context.
  std::vector<ChatMessage> visible() const;
  // Their tokens, after dropping the oldest turns until there are at most `most` of them, or
  // nothing is left to drop but the last message.
  Result<std::vector<Token>> encode_within(std::size_t most, bool open_answer);
  // Drops the oldest turn from the context; false where only the last is left.
  bool drop_oldest();
  // Forgets what the cache holds beyond its common beginning with `tokens`, and at least the last
  // token of those, whose logits are needed.
  void keep_common_part(std::span<const Token> tokens);

  Session& session_;
  std::unique_ptr<Sampler> sampler_;
  GenerateOptions options_;
  bool shifts_;
  std::vector<ChatMessage> messages_;
  std::size_t dropped_ = 0;  // messages after the system message that are not in the context
  std::vector<Token> held_;  // what the cache holds
};

}  // namespace kvspan::cli
