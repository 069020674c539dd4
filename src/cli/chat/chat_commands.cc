// SPDX-License-Identifier: Apache-2.0
#include "cli/chat/chat_commands.h"

#include <array>
#include <cstdio>
#include <vector>

#include "base/fail.h"
#include "base/spelling.h"
#include "cli/chat/saved_chat.h"
#include "cli/output/standard_output.h"
#include "cli/output/voice.h"
#include "cli/terminal/text_input.h"

namespace kvspan::cli {
namespace {

struct ChatCommand {
  const char* name;
  const char* argument;  // as /help shows it; "" for none, in brackets where it may be left out
  const char* summary;
  Status (*run)(Chat& chat, const std::string& argument);
};

Status help(Chat& chat, const std::string&);

std::string cache_text(const Chat& chat) {
  Answer now;
  measure_cache(chat.session, now);
  return fmt::format("{} | {} of {} tokens | {}", now.recipe, now.cache_tokens,
                     chat.session.context, kv_text(now));
}

Status stats(Chat& chat, const std::string&) {
  const std::size_t dropped = chat.conversation.dropped();
  fmt::print(stderr, "{} messages{} | {}\n", chat.conversation.messages().size(),
             dropped == 0 ? "" : fmt::format(", the oldest {} not in the context", dropped),
             cache_text(chat));
  if (chat.last) fmt::print(stderr, "last answer: {}\n", stats_line(*chat.last));
  return {};
}

Status system_message(Chat& chat, const std::string& text) {
  if (!text.empty()) {
    KVSPAN_CHECK_OK(check_text(text, "the system message"));
    chat.conversation.set_system(text);
  }
  const auto& messages = chat.conversation.messages();
  const bool there = !messages.empty() && messages.front().role == "system";
  fmt::print(stderr, "{}\n",
             there ? "system message: " + messages.front().content : "there is no system message");
  return {};
}

Status undo(Chat& chat, const std::string&) {
  KVSPAN_CHECK_OK(chat.conversation.undo());
  fmt::print(stderr, "the last question was taken back; {} messages are left\n",
             chat.conversation.messages().size());
  return {};
}

Status cache(Chat& chat, const std::string& recipe) {
  if (!recipe.empty()) KVSPAN_CHECK_OK(chat.conversation.use_recipe(recipe));
  fmt::print(stderr, "{}\n", cache_text(chat));
  chat.session.say_code();
  return {};
}

Status save_as(Chat& chat, const std::string& path, Replace replace) {
  KVSPAN_CHECK_OK(save_chat(path, chat, replace));
  fmt::print(stderr, "saved {} messages to {}\n", chat.conversation.messages().size(), path);
  return {};
}

Status save(Chat& chat, const std::string& path) {
  return save_as(chat, path, Replace::kNever);
}

Status save_over(Chat& chat, const std::string& path) {
  return save_as(chat, path, Replace::kConversation);
}

Status load(Chat& chat, const std::string& path) {
  KVSPAN_CHECK_OK(load_chat(path, chat));
  fmt::print(stderr, "loaded {} messages from {} | {}\n", chat.conversation.messages().size(), path,
             cache_text(chat));
  return {};
}

Status regen(Chat& chat, const std::string&) {
  return show_answer(chat, chat.conversation.answer_again(print_piece));
}

Status clear(Chat& chat, const std::string&) {
  chat.conversation.clear();
  chat.file.clear();
  fmt::print(stderr, "the conversation is empty\n");
  return {};
}

Status quit(Chat& chat, const std::string&) {
  chat.quit = true;
  return {};
}

constexpr std::array kChatCommands{
    ChatCommand{"/help", "", "this list", help},
    ChatCommand{"/stats", "", "messages, tokens and bytes held; speed of the last answer", stats},
    ChatCommand{"/cache", "[RECIPE]", "the cache; with a recipe, another one reads all again",
                cache},
    ChatCommand{"/save", "FILE", "write the conversation as JSON, and its cache to FILE.kv", save},
    ChatCommand{"/save!", "FILE", "the same, in place of another conversation", save_over},
    ChatCommand{"/load", "FILE", "go on with a saved conversation", load},
    ChatCommand{"/system", "[TEXT]", "the system message; with a text, another one",
                system_message},
    ChatCommand{"/regen", "", "answer the last message again", regen},
    ChatCommand{"/undo", "", "take back the last question and its answer", undo},
    ChatCommand{"/clear", "", "forget all but the system message", clear},
    ChatCommand{"/quit", "", "leave (so does Ctrl-D)", quit},
};

Status help(Chat&, const std::string&) {
  for (const ChatCommand& command : kChatCommands) {
    fmt::print(stderr, "  {:<18}{}\n", fmt::format("{} {}", command.name, command.argument),
               command.summary);
  }
  fmt::print(
      stderr,
      "Ctrl-C stops an answer; twice within a second it leaves. What is pasted is one message; "
      "so is what\nstands between two \"\"\", and a line that ends in \\ goes on in the next. A "
      "message may begin with a\nspace, and then with a slash.\n");
  return {};
}

std::string_view trimmed(std::string_view text) {
  while (text.ends_with(' ')) text.remove_suffix(1);
  while (text.starts_with(' ')) text.remove_prefix(1);
  return text;
}

}  // namespace

void print_piece(std::string_view piece) {
  write_output(piece);
}

Status show_answer(Chat& chat, Result<Answer> answer) {
  if (!answer) return std::move(answer).error();
  const Generation& generation = answer->generation;
  if (!generation.text.empty() && !generation.text.ends_with('\n')) print_piece("\n");
  if (generation.tokens.empty()) {
    fmt::print(stderr, "stopped while reading; the message was taken back\n");
    return {};
  }
  KVSPAN_CHECK_OK(output_status());
  print_stats(*answer);
  chat.session.say_code();
  chat.last = *answer;
  if (answer->dropped_messages > 0) {
    say(fmt::format(
        "the context of {} tokens was full: the oldest {} messages are no longer in it\n",
        chat.session.context, answer->dropped_messages));
  } else if (answer->shifts > 0) {
    say(fmt::format("the context of {} tokens was full: the middle of this turn was forgotten\n",
                    chat.session.context));
  }
  if (generation.reason == StopReason::kContext) {
    say(fmt::format(
        "the context of {} tokens is full; the next message drops the oldest turns, /clear all\n",
        chat.session.context));
  }
  return {};
}

bool is_chat_command(std::string_view line) noexcept {
  return line.starts_with('/') && line.find('\n') == std::string_view::npos;
}

Status run_chat_command(Chat& chat, const std::string& line) {
  const std::size_t space = line.find(' ');
  const std::string name = line.substr(0, space);
  const std::string argument(
      space == std::string::npos ? "" : trimmed(std::string_view(line).substr(space)));
  std::vector<std::string> names;
  for (const ChatCommand& command : kChatCommands) {
    names.emplace_back(command.name);
    if (name != command.name) continue;
    const std::string_view wanted = command.argument;
    if (wanted.empty() != argument.empty() && !wanted.starts_with('[')) {
      return fail(ErrorCode::kInvalidArgument, "{} takes {}", name,
                  wanted.empty() ? "nothing" : wanted);
    }
    return command.run(chat, argument);
  }
  return fail(ErrorCode::kInvalidArgument, "no command is called '{}'{} (/help lists them)", name,
              did_you_mean(name, names));
}

}  // namespace kvspan::cli
