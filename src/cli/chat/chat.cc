// SPDX-License-Identifier: Apache-2.0
// kvspan chat: several turns; the cache keeps the conversation.
#include "cli/chat/chat.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>

#include "base/fail.h"
#include "cli/chat/answer_flags.h"
#include "cli/chat/chat_commands.h"
#include "cli/chat/saved_chat.h"
#include "cli/command.h"
#include "cli/flags.h"
#include "cli/output/standard_output.h"
#include "cli/output/voice.h"
#include "cli/program.h"
#include "cli/terminal/interrupt.h"
#include "cli/terminal/line_reader.h"
#include "cli/terminal/text_input.h"
#include "io/user_folders.h"

namespace kvspan::cli {
namespace {

// The file of the history; empty where there is no place for one.
std::string history_file() {
  const auto folder = user_cache_folder();
  if (!folder || !make_folders(*folder)) return {};
  return *folder + "/chat_history";
}

constexpr std::string_view kQuotes = "\"\"\"";
constexpr std::chrono::seconds kTwice{1};  // between the two Ctrl-C that leave

// Reads on into `line` what belongs to the same message; false where Ctrl-C or the end came.
bool read_more(LineReader& reader, LineReader::Line& line) {
  LineReader::Line next = reader.read(". ");
  line.text += next.text;
  if (next.kind == LineReader::Kind::kInterrupted) line.kind = next.kind;
  return next.kind == LineReader::Kind::kText;
}

// One message: a line and those after it while they end in a backslash, or all up to the second of
// two triple quotes.
LineReader::Line read_message(LineReader& reader) {
  LineReader::Line line = reader.read("> ");
  if (line.kind != LineReader::Kind::kText) return line;
  if (line.text.starts_with(kQuotes)) {
    line.text.erase(0, kQuotes.size());
    bool more = true;
    while (more && !line.text.ends_with(kQuotes)) {
      line.text += '\n';
      more = read_more(reader, line);
    }
    if (line.text.ends_with(kQuotes)) line.text.resize(line.text.size() - kQuotes.size());
    if (line.text.starts_with('\n')) line.text.erase(0, 1);
    if (line.text.ends_with('\n')) line.text.pop_back();
    return line;
  }
  while (line.text.ends_with('\\')) {
    line.text.back() = '\n';
    if (!read_more(reader, line)) break;
  }
  return line;
}

// Ctrl-C at the prompt. It leaves where it came twice within a second and no key between.
class LeavingKeys {
 public:
  bool leaves(const LineReader::Line& line) {
    const auto now = std::chrono::steady_clock::now();
    const bool untouched = line.text.empty() && line.keys == 0;
    const bool twice = untouched && armed_ && now - last_ <= kTwice;
    armed_ = line.text.empty();
    last_ = now;
    return twice;
  }
  void forget() { armed_ = false; }

 private:
  bool armed_ = false;  // the last one was the first of two
  std::chrono::steady_clock::time_point last_{};
};

Status take_turn(Chat& chat, const std::string& line) {
  if (is_chat_command(line)) return run_chat_command(chat, line);
  KVSPAN_CHECK_OK(check_text(line, "the message"));
  return show_answer(chat, chat.conversation.ask(line, print_piece));
}

// Returns the exit code. Errors of single turns are told and the chat goes on; where nobody is
// there to read them (a pipe), the exit code remembers.
int talk(Chat& chat, LineReader& reader, bool on_terminal, const std::string& first) {
  int code = 0;
  LeavingKeys leaving;
  const auto turn = [&](const std::string& text) {
    if (text.find_first_not_of(" \t\n") == std::string::npos) return;
    const Status status = take_turn(chat, text);
    if (status) return;
    chat.quit = chat.quit || !output_status();  // the program says it in the end
    if (!chat.quit) print_error(status.error().message);
    if (!on_terminal) code = exit_code_of(status.error().code);
  };
  turn(first);
  while (!chat.quit && !terminated()) {
    interrupted() = false;
    const LineReader::Line line = read_message(reader);
    if (terminated() || line.kind == LineReader::Kind::kEnd) break;
    if (line.kind == LineReader::Kind::kInterrupted) {
      if (!on_terminal) return kInterruptedExit;
      if (leaving.leaves(line)) return 0;
      if (line.text.empty()) fmt::print(stderr, "Ctrl-C twice, Ctrl-D or /quit leaves\n");
      continue;
    }
    leaving.forget();
    reader.remember(line.text);
    turn(line.text);
  }
  return terminated() ? kTerminatedExit : code;
}

// A file that is not there yet is made when leaving.
Status resume_chat(const std::string& path, Chat& chat) {
  const Status status = load_chat(path, chat);
  if (!status && status.error().code != ErrorCode::kNotFound) return status;
  if (status) {
    say(fmt::format("going on with {} messages of {}\n", chat.conversation.messages().size(), path));
  }
  return {};
}

}  // namespace

Result<int> chat(const ChatFlags& flags) {
  catch_interrupts(Interrupts::kAlways);
  KVSPAN_CHECK_OK(check_text(flags.system, "--system"));
  KVSPAN_TRY(const SamplerOptions sampling, flags.sampling.sampler());
  KVSPAN_TRY(Session session, open_session(flags.model, flags.companions));
  KVSPAN_TRY(auto sampler, make_sampler(sampling, *session.engine));
  say(session.note);
  session.say_code();
  GenerateOptions options;
  options.max_tokens = flags.sampling.token_limit();
  options.context = session.context;
  options.stop = flags.sampling.stop;
  Conversation conversation(session, std::move(sampler), options, flags.system,
                            flags.sampling.shifts());
  Chat state{session, conversation, flags.model.model};

  const bool on_terminal = isatty(0) == 1;
  const auto reader = make_line_reader(on_terminal ? history_file() : "");
  if (on_terminal) {
    say(fmt::format("{}, context {} tokens, cache {}; /help lists the commands\n",
                    session.engine->info().name, session.context, session.cache->recipe()));
  }
  if (!session.tokenizer->has_chat_template()) {
    say("this model has no chat template: it continues what you write\n");
  }
  if (!flags.resume.empty()) KVSPAN_CHECK_OK(resume_chat(flags.resume, state));
  const int code = talk(state, *reader, on_terminal, flags.first);
  if (!flags.resume.empty()) {
    KVSPAN_CHECK_OK(save_chat(flags.resume, state, Replace::kConversation));
  }
  return code;
}

Action setup_chat(CLI::App& app) {
  auto flags = std::make_shared<ChatFlags>();
  add_model_flag(app, flags->model);
  add_text(app, "--system,--system-prompt", flags->system, "-sys: system message", "TEXT");
  add_text(app, "-p,--prompt", flags->first, "First message", "TEXT");
  add_text(app, "--resume", flags->resume,
           "Go on with the conversation that FILE holds, if there is one, and keep it there and its "
           "cache in FILE.kv when leaving",
           "FILE");
  add_switch(app, "--conversation", flags->conversation, "-cnv: taken; this is one");
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
