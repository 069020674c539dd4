// SPDX-License-Identifier: Apache-2.0
// kvspan chat: several turns; the cache keeps the conversation.
#include <unistd.h>

#include <cstdio>

#include "base/fail.h"
#include "cli/chat/answer_flags.h"
#include "cli/chat/chat_commands.h"
#include "cli/chat/saved_chat.h"
#include "cli/command.h"
#include "cli/flags.h"
#include "cli/program.h"
#include "cli/terminal/interrupt.h"
#include "cli/terminal/line_reader.h"
#include "cli/terminal/text_input.h"
#include "io/user_folders.h"

namespace kvspan::cli {
namespace {

struct ChatFlags {
  ModelFlags model;
  SamplingFlags sampling;
  CompanionFlags companions;
  std::string system;
  std::string resume;
};

// The file of the history; empty where there is no place for one.
std::string history_file() {
  const auto folder = user_cache_folder();
  if (!folder || !make_folders(*folder)) return {};
  return *folder + "/chat_history";
}

// One message: a line, and those after it while they end in a backslash.
LineReader::Line read_message(LineReader& reader) {
  LineReader::Line line = reader.read("> ");
  while (line.kind == LineReader::Kind::kText && line.text.ends_with('\\')) {
    line.text.back() = '\n';
    LineReader::Line next = reader.read(". ");
    if (next.kind == LineReader::Kind::kInterrupted) return {next.kind, line.text + next.text};
    line.text += next.text;
    if (next.kind == LineReader::Kind::kEnd) break;
  }
  return line;
}

Status take_turn(Chat& chat, const std::string& line) {
  if (is_chat_command(line)) return run_chat_command(chat, line);
  KVSPAN_CHECK_OK(check_text(line, "the message"));
  return show_answer(chat, chat.conversation.ask(line, print_piece));
}

// Returns the exit code. Errors of single turns are told and the chat goes on; where nobody is
// there to read them (a pipe), the exit code remembers.
int talk(Chat& chat, LineReader& reader, bool on_terminal) {
  int code = 0;
  bool leave_on_interrupt = !on_terminal;
  while (!chat.quit) {
    interrupted() = false;
    const LineReader::Line line = read_message(reader);
    if (line.kind == LineReader::Kind::kEnd) break;
    if (line.kind == LineReader::Kind::kInterrupted) {
      if (line.text.empty() && leave_on_interrupt) return on_terminal ? 0 : kInterruptedExit;
      leave_on_interrupt = line.text.empty();
      if (leave_on_interrupt) fmt::print(stderr, "Ctrl-C again, Ctrl-D or /quit leaves\n");
      continue;
    }
    leave_on_interrupt = !on_terminal;
    if (line.text.find_first_not_of(" \t\n") == std::string::npos) continue;
    reader.remember(line.text);
    if (const Status status = take_turn(chat, line.text); !status) {
      print_error(status.error().message);
      if (!on_terminal) code = exit_code_of(status.error().code);
    }
  }
  return code;
}

// A file that is not there yet is made when leaving.
Status resume_chat(const std::string& path, Chat& chat) {
  const Status status = load_chat(path, chat);
  if (!status && status.error().code != ErrorCode::kNotFound) return status;
  if (status) {
    fmt::print(stderr, "going on with {} messages of {}\n", chat.conversation.messages().size(),
               path);
  }
  return {};
}

Result<int> chat(const ChatFlags& flags) {
  catch_interrupts(Interrupts::kAlways);
  KVSPAN_CHECK_OK(check_text(flags.system, "--system"));
  KVSPAN_TRY(const SamplerOptions sampling, flags.sampling.sampler());
  KVSPAN_TRY(Session session, open_session(flags.model, flags.companions));
  KVSPAN_TRY(auto sampler, make_sampler(sampling, *session.engine));
  fmt::print(stderr, "{}", session.note);
  session.say_code();
  GenerateOptions options;
  options.max_tokens = flags.sampling.token_limit();
  options.context = session.context;
  options.stop = flags.sampling.stop;
  Conversation conversation(session, std::move(sampler), options, flags.system);
  Chat state{session, conversation, flags.model.model};

  const bool on_terminal = isatty(0) == 1;
  const auto reader = make_line_reader(on_terminal ? history_file() : "");
  if (on_terminal) {
    fmt::print(stderr, "{}, context {} tokens, cache {}; /help lists the commands\n",
               session.engine->info().name, session.context, session.cache->recipe());
  }
  if (!session.tokenizer->has_chat_template()) {
    fmt::print(stderr, "this model has no chat template: it continues what you write\n");
  }
  if (!flags.resume.empty()) KVSPAN_CHECK_OK(resume_chat(flags.resume, state));
  const int code = talk(state, *reader, on_terminal);
  if (!flags.resume.empty()) KVSPAN_CHECK_OK(save_chat(flags.resume, state));
  return code;
}

}  // namespace

Action setup_chat(CLI::App& app) {
  auto flags = std::make_shared<ChatFlags>();
  add_model_flag(app, flags->model);
  add_text(app, "--system,--system-prompt", flags->system, "System message", "TEXT");
  add_text(
      app, "--resume", flags->resume,
      "Go on with the conversation that FILE holds, if there is one, and keep it there and its "
      "cache in FILE.kv when leaving",
      "FILE");
  add_engine_flags(app, flags->model);
  add_default_recipe(app, flags->model);
  add_sampling_flags(app, flags->sampling);
  add_companion_flags(app, flags->companions);
  set_footer(app,
             "In the chat, /help lists the commands and Ctrl-C stops an answer.\n"
             "Examples:\n"
             "  kvspan chat -m smollm2\n"
             "  kvspan chat -m smollm2 --resume notes.json\n"
             "  kvspan chat -m smollm2 --system \"Answer in one sentence.\" --temp 0.2\n"
             "  printf 'Hello\\n/stats\\n' | kvspan chat -m smollm2\n");
  return [flags] { return chat(*flags); };
}

}  // namespace kvspan::cli
