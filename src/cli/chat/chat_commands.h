// SPDX-License-Identifier: Apache-2.0
// What begins with a slash in a chat.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "cli/chat/conversation.h"

namespace kvspan::cli {

struct Chat {
  Session& session;
  Conversation& conversation;
  std::string model;  // as -m named it
  std::string file{};  // that the conversation was loaded from or saved to last; "": none
  bool quit = false;
  std::optional<Answer> last{};  // the last answer that was given
};

// Prints an answer as it comes, its numbers, and a full context.
Status show_answer(Chat& chat, Result<Answer> answer);
// The stream of an answer: standard output, flushed piece by piece.
void print_piece(std::string_view piece);

// Whether a message is a command: one line that begins with '/'.
bool is_chat_command(std::string_view line) noexcept;
// Runs one. Fails, naming the nearest command, on one that does not exist.
Status run_chat_command(Chat& chat, const std::string& line);

}  // namespace kvspan::cli
