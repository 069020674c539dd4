// SPDX-License-Identifier: Apache-2.0
#include "cli/chat/chat_commands.h"

#include <array>
#include <cstdio>
#include <vector>

#include "base/fail.h"
#include "base/spelling.h"
#include "cli/chat/chat_file.h"
#include "cli/output/format.h"
#include "io/atomic_file.h"

namespace kvspan::cli {
namespace {

// Far beyond any context.
constexpr std::size_t kChatFileLimit = std::size_t{64} << 20;

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
  return fmt::format("{} | {} of {} tokens | KV {}, f16 / KV = {}", now.recipe, now.cache_tokens,
                     chat.session.context, format_bytes(now.kv_bytes),
                     format_ratio(now.kv_bytes_full, now.kv_bytes));
}

Status stats(Chat& chat, const std::string&) {
  fmt::print(stderr, "{} messages | {}\n", chat.conversation.messages().size(), cache_text(chat));
  return {};
}

Status cache(Chat& chat, const std::string& recipe) {
  if (!recipe.empty()) KVSPAN_CHECK_OK(chat.conversation.use_recipe(recipe));
  fmt::print(stderr, "{}\n", cache_text(chat));
  chat.session.say_code();
  return {};
}

Status save(Chat& chat, const std::string& path) {
  KVSPAN_CHECK_OK(write_file(path, chat_to_json(chat.conversation.messages(), chat.model)));
  fmt::print(stderr, "saved {} messages to {}\n", chat.conversation.messages().size(), path);
  return {};
}

Status load(Chat& chat, const std::string& path) {
  KVSPAN_TRY(const auto bytes, read_file(path, kChatFileLimit));
  auto messages = chat_from_json({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  if (!messages) return fail(messages.error().code, "'{}' is {}", path, messages.error().message);
  KVSPAN_CHECK_OK(chat.conversation.restore(*std::move(messages)));
  fmt::print(stderr, "loaded {} messages from {} | {}\n", chat.conversation.messages().size(), path,
             cache_text(chat));
  return {};
}

Status regen(Chat& chat, const std::string&) {
  return show_answer(chat, chat.conversation.answer_again(print_piece));
}

Status clear(Chat& chat, const std::string&) {
  chat.conversation.clear();
  fmt::print(stderr, "the conversation is empty\n");
  return {};
}

Status quit(Chat& chat, const std::string&) {
  chat.quit = true;
  return {};
}

constexpr std::array kChatCommands{
    ChatCommand{"/help", "", "this list", help},
    ChatCommand{"/stats", "", "messages, tokens and bytes held", stats},
    ChatCommand{"/cache", "[RECIPE]", "the cache; with a recipe, another one reads all again",
                cache},
    ChatCommand{"/save", "FILE", "write the conversation as JSON", save},
    ChatCommand{"/load", "FILE", "go on with a saved conversation", load},
    ChatCommand{"/regen", "", "answer the last message again", regen},
    ChatCommand{"/clear", "", "forget all but the system message", clear},
    ChatCommand{"/quit", "", "leave (so does Ctrl-D)", quit},
};

Status help(Chat&, const std::string&) {
  for (const ChatCommand& command : kChatCommands) {
    fmt::print(stderr, "  {:<18}{}\n", fmt::format("{} {}", command.name, command.argument),
               command.summary);
  }
  fmt::print(stderr,
             "Ctrl-C stops an answer. A line that ends in \\ goes on in the next. A message may "
             "begin with a space, and then with a slash.\n");
  return {};
}

std::string_view trimmed(std::string_view text) {
  while (text.ends_with(' ')) text.remove_suffix(1);
  while (text.starts_with(' ')) text.remove_prefix(1);
  return text;
}

}  // namespace

void print_piece(std::string_view piece) {
  std::fwrite(piece.data(), 1, piece.size(), stdout);
  std::fflush(stdout);
}

Status show_answer(const Chat& chat, Result<Answer> answer) {
  if (!answer) return std::move(answer).error();
  const Generation& generation = answer->generation;
  if (!generation.text.empty() && !generation.text.ends_with('\n')) print_piece("\n");
  if (generation.tokens.empty()) {
    fmt::print(stderr, "stopped while reading; the message was taken back\n");
    return {};
  }
  print_stats(*answer);
  chat.session.say_code();
  if (generation.reason == StopReason::kContext) {
    fmt::print(stderr, "the context of {} tokens is full; /clear starts anew\n",
               chat.session.context);
  }
  return {};
}

bool is_chat_command(std::string_view line) noexcept {
  return line.starts_with('/');
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
