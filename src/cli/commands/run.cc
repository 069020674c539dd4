// SPDX-License-Identifier: Apache-2.0
// kvspan run: one prompt, one answer.
#include "base/fail.h"
#include "cli/chat/answer.h"
#include "cli/chat/answer_flags.h"
#include "cli/chat/chat.h"
#include "cli/chat/make_room.h"
#include "cli/chat/prompt.h"
#include "cli/command.h"
#include "cli/commands/track_file.h"
#include "cli/flags.h"
#include "cli/output/standard_output.h"
#include "cli/output/voice.h"
#include "cli/prompt_cache.h"
#include "cli/terminal/interrupt.h"
#include "cli/terminal/text_input.h"

namespace kvspan::cli {
namespace {

struct RunFlags {
  ModelFlags model;
  SamplingFlags sampling;
  CompanionFlags companions;
  TextFlags prompt;
  std::string system;
  std::string json;
  std::string track;
  std::string prompt_cache;
  bool raw = false;
  bool conversation = false;
};

// Takes so much out of the middle of a prompt that it fits, with room for the answer, and says so;
// returns how much.
std::size_t cut_middle(std::vector<Token>& tokens, const Session& session, const RunFlags& flags) {
  const auto context = static_cast<std::size_t>(session.context);
  if (tokens.size() <= context) return 0;
  const std::size_t all = tokens.size();
  tokens = without_middle(tokens,
                          context - room_for_answer(session.context, flags.sampling.token_limit()));
  say(fmt::format(
      "kvspan: the prompt has {} tokens, the context holds {}: {} from its middle are left out\n",
      all, context, all - tokens.size()));
  return all - tokens.size();
}

Result<int> run(const RunFlags& flags) {
  if (flags.conversation) {
    return chat({flags.model, flags.sampling, flags.companions, flags.system, flags.prompt.text, "", true});
  }
  catch_interrupts(Interrupts::kOnce);
  KVSPAN_CHECK_OK(check_json_target(flags.json));
  KVSPAN_TRY(TrackFile track, TrackFile::create(flags.track));
  KVSPAN_CHECK_OK(check_text(flags.system, "--system"));
  KVSPAN_TRY(const std::string text, read_text(flags.prompt, LastNewline::kDrop));
  KVSPAN_TRY(const SamplerOptions sampling, flags.sampling.sampler());
  KVSPAN_TRY(Session session, open_session(flags.model, flags.companions));
  KVSPAN_TRY(const auto sampler, make_sampler(sampling, *session.engine));
  KVSPAN_CHECK_OK(track.watch(session.cache));
  KVSPAN_TRY(std::vector<Token> tokens,
             encode_question(*session.tokenizer, text, flags.system, flags.raw));
  const std::size_t cut = flags.sampling.no_shift ? 0 : cut_middle(tokens, session, flags);
  KVSPAN_CHECK_OK(check_prompt_length(tokens.size(), session));
  say(session.note);
  session.say_code();

  PromptRead read_before;
  if (!flags.prompt_cache.empty()) {
    KVSPAN_TRY(read_before, read_with_prompt_cache(flags.prompt_cache, session, tokens));
  }
  GenerateOptions options;
  options.max_tokens = flags.sampling.token_limit();
  options.context = session.context;
  options.stop = flags.sampling.stop;
  const bool text_wanted = flags.json != "-";
  const auto stream = [&](std::string_view piece) {
    if (text_wanted) write_output(piece);
  };
  const auto shorten = [&](std::span<const Token> said) -> Result<std::vector<Token>> {
    std::vector<Token> all = tokens;
    all.insert(all.end(), said.begin(), said.end());
    return without_middle(all, shortened_length(session.context));
  };
  KVSPAN_TRY(Answer answer, answer_prompt(session, tokens, *sampler, options, stream,
                                          flags.sampling.shifts() ? Shorten(shorten) : Shorten()));
  answer.cut_tokens = cut;
  answer.read_tokens += read_before.tokens;
  answer.read_seconds += read_before.seconds;
  const Generation& generation = answer.generation;
  if (text_wanted && !generation.tokens.empty() && !generation.text.ends_with('\n')) {
    write_output("\n");
  }
  if (text_wanted) KVSPAN_CHECK_OK(output_status());
  KVSPAN_CHECK_OK(track.write());
  KVSPAN_CHECK_OK(write_json(to_json(answer), flags.json));
  print_stats(answer);
  session.say_code();
  return generation.reason == StopReason::kCancelled ? kInterruptedExit : 0;
}

}  // namespace

Action setup_run(CLI::App& app) {
  auto flags = std::make_shared<RunFlags>();
  add_model_flag(app, flags->model);
  add_text_flags(app, flags->prompt, "-p,--prompt");
  add_text(app, "--system,--system-prompt", flags->system, "-sys: system message", "TEXT");
  add_switch(app, "--raw,--no-conversation", flags->raw,
             "-no-cnv: continue the text as it is, without the chat template");
  add_switch(app, "--conversation", flags->conversation,
             "-cnv: answer the prompt, then go on as kvspan chat");
  exclude_each_other(app, "--raw", "--conversation");
  add_engine_flags(app, flags->model);
  add_default_recipe(app, flags->model);
  add_sampling_flags(app, flags->sampling);
  add_companion_flags(app, flags->companions);
  add_json_flag(app, flags->json);
  add_text(
      app, "--prompt-cache", flags->prompt_cache,
      "Keep the cache of the prompt in FILE: what it holds of the prompt's beginning is not read "
      "again",
      "FILE");
  add_text(app, "--track", flags->track,
           "Hold every step against exact attention (slow) and write the errors of each "
           "layer as JSON lines, beside bounds where the recipe says certify=on",
           "FILE");
  exclude_each_other(app, "--prompt-cache", "--track");
  for (const char* flag : {"--json", "--track", "--file", "--prompt-cache"}) {
    exclude_each_other(app, "--conversation", flag);
  }
  set_footer(
      app,
      "Examples:\n"
      "  kvspan run -m smollm2 -p \"Why is the sky blue?\" --temp 0\n"
      "  kvspan run -m smollm2 -p \"Name a colour.\" --json-schema '{\"enum\": [\"red\", "
      "\"blue\"]}'\n"
      "  kvspan run -m smollm2 -f report.txt --system \"Summarise the text.\" -n 200\n"
      "  kvspan run -m smollm2 -f book.txt --raw -n 40 --prompt-cache book.kv\n"
      "  echo \"Once upon a time\" | kvspan run -m stories260k --raw --json numbers.json\n"
      "  kvspan run -m smollm2 -f report.txt --cache fd:certify=on -n 20 --track errors.jsonl\n");
  return [flags] { return run(*flags); };
}

}  // namespace kvspan::cli
