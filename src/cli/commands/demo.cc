// SPDX-License-Identifier: Apache-2.0
// kvspan demo: a long text is read once, by the full cache, and coded for bands on the way; both
// answer a question about it. Then the same question about the paragraphs around the answer, which
// every family of caches reads itself, one row each.
#include <algorithm>
#include <array>
#include <cstdio>

#include "base/fail.h"
#include "cli/calibration.h"
#include "cli/chat/answer.h"
#include "cli/chat/prompt.h"
#include "cli/command.h"
#include "cli/commands/demo_text.h"
#include "cli/flags.h"
#include "cli/output/format.h"
#include "cli/output/progress_bar.h"
#include "cli/output/table.h"
#include "cli/terminal/interrupt.h"
#include "cli/terminal/terminal.h"
#include "eval/shared_reading.h"

namespace kvspan::cli {
namespace {

// What the long text is coded by: an eighth of f16's bytes at its length.
constexpr const char* kBookRecipe = "bands:bits=1.77,ends=int8";
// Families on the short text; the first is what the others are held against.
constexpr std::array kFamilyRecipes{"full",
                                    "quant:bits=4",
                                    "bands:bits=2",
                                    "spectral:rk=d/4,rv=d/2,store=f16",
                                    "streaming:size=256",
                                    "static:rk=d/2,rv=d/2",
                                    "fd:rk=d/2,rv=d/2,min_chunk=256",
                                    "oja:ratio=0.6"};
constexpr std::size_t kWidth = 100;

struct DemoFlags {
  ModelFlags model;
  std::string json;
  std::int64_t max_tokens = 64;
};

// With the session's cache, which holds part of the prompt or nothing.
Result<Answer> answer_now(Session& session, std::span<const Token> prompt, const DemoFlags& flags) {
  KVSPAN_TRY(const auto sampler, Sampler::make({.temperature = 0.0f}, *session.engine));
  GenerateOptions options;
  options.max_tokens = static_cast<std::int32_t>(flags.max_tokens);
  options.context = session.context;
  return answer_prompt(session, prompt, *sampler, options, nullptr);
}

bool stopped(const std::vector<Answer>& answers) {
  return !answers.empty() && answers.back().generation.reason == StopReason::kCancelled;
}

// The whole text, read once for both caches; the answers of each.
Result<std::vector<Answer>> answers_about_all(Session& session, std::span<const Token> prompt,
                                              const DemoFlags& flags) {
  KVSPAN_TRY(auto full, new_cache(*session.engine, "full"));
  std::vector<std::unique_ptr<KvCache>> others;
  KVSPAN_TRY(auto coded, new_cache(*session.engine, kBookRecipe));
  others.push_back(std::move(coded));
  SharedReading reading(std::move(full), std::move(others));
  {
    ProgressBar bar("reading", "tokens", prompt.size() - 1);
    const Status status = session.engine->prefill(reading, prompt.first(prompt.size() - 1),
                                                  [&](std::size_t done) { bar.update(done); });
    if (!status) return status.error();
  }
  std::vector<Answer> answers;
  for (auto& cache : std::move(reading).finish()) {
    session.cache = std::move(cache);
    KVSPAN_TRY(Answer answer, answer_now(session, prompt, flags));
    answers.push_back(std::move(answer));
    if (stopped(answers)) break;
  }
  return answers;
}

Result<std::vector<Answer>> answers_of_families(Session& session, std::span<const Token> prompt,
                                                const DemoFlags& flags) {
  std::vector<Answer> answers;
  for (const char* recipe : kFamilyRecipes) {
    KVSPAN_TRY(session.cache, new_cache(*session.engine, recipe));
    KVSPAN_TRY(Answer answer, answer_now(session, prompt, flags));
    answers.push_back(std::move(answer));
    if (stopped(answers)) break;
  }
  return answers;
}

// An answer from the word on in which it leaves the expected one.
std::string where_it_differs(const std::string& answer, const std::string& expected) {
  if (answer == expected) return "the same";
  const auto common = std::mismatch(answer.begin(), answer.end(), expected.begin(), expected.end()).first;
  const auto word = std::find(std::make_reverse_iterator(common), answer.rend(), ' ').base();
  return (word == answer.begin() ? "" : "... ") + std::string(word, answer.end());
}

// The first answer in full, then a table that says of the others where they differ.
std::string table_of(const std::vector<Answer>& answers) {
  using Align = Table::Align;
  const std::string expected = answers.empty() ? "" : answers.front().generation.text;
  Table table({{"recipe"},
               {"KV", Align::kRight},
               {"f16 / KV", Align::kRight},
               {"tok/s", Align::kRight},
               {"answer"}});
  for (const Answer& a : answers) {
    table.add_row({a.recipe, format_bytes(a.kv_bytes), format_ratio(a.kv_bytes_full, a.kv_bytes),
                   format_rate(a.decoded_tokens, a.decode_seconds),
                   where_it_differs(a.generation.text, expected)});
  }
  const Terminal terminal = describe_terminal(1);
  return fmt::format("Answer: {}\n\n", expected) + table.text(
      terminal.is_terminal ? std::min(kWidth, static_cast<std::size_t>(terminal.width)) : kWidth);
}

// What the two rows about the long text come to.
std::string comparison_of(const std::vector<Answer>& answers) {
  if (answers.size() < 2) return "";
  const bool same = answers[0].generation.text == answers[1].generation.text;
  return fmt::format("{}, and {:.1f} times fewer bytes than f16 takes.\n",
                     same ? "The same answer" : "Not the same answer",
                     static_cast<double>(answers[1].kv_bytes_full) / static_cast<double>(answers[1].kv_bytes));
}

Json rows_json(const std::vector<Answer>& answers) {
  Json rows = Json::array();
  for (const Answer& answer : answers) rows.push_back(to_json(answer));
  return rows;
}

Result<int> demo(const DemoFlags& flags) {
  catch_interrupts(Interrupts::kOnce);
  KVSPAN_CHECK_OK(check_json_target(flags.json));
  KVSPAN_TRY(const DemoText demo_text, load_demo_text());
  KVSPAN_TRY(Session session, open_session(flags.model));
  const auto prompt = [&](const std::string& text) {
    return encode_question(*session.tokenizer, text + "\n\n" + demo_text.question, "",
                           /*raw=*/false);
  };
  KVSPAN_TRY(const std::vector<Token> all, prompt(demo_text.text));
  KVSPAN_TRY(const std::vector<Token> some, prompt(demo_text.excerpt));
  KVSPAN_CHECK_OK(check_prompt_length(all.size(), session));
  const auto say = [&](const std::string& text) {
    if (flags.json == "-") return;
    fmt::print("{}", text);
    std::fflush(stdout);  // before the next progress bar, which goes elsewhere
  };
  say(fmt::format("A text of {} tokens, and a question about it:\n{}\n\n", format_count(all.size()),
                  styled(demo_text.question, Style::kBold, describe_terminal(1))));
  auto whole = answers_about_all(session, all, flags);
  if (!whole && whole.error().code == ErrorCode::kCancelled) return kInterruptedExit;
  if (!whole) return std::move(whole).error();
  say(table_of(*whole) + comparison_of(*whole));
  std::vector<Answer> families;
  if (!stopped(*whole)) {
    say(fmt::format("\nThe same question about the {} tokens around the answer, by family:\n",
                    format_count(some.size())));
    KVSPAN_TRY(families, answers_of_families(session, some, flags));
    say(table_of(families) +
        "f16 / KV: how many times smaller than f16. It grows with the text: the first and last "
        "tokens\nstay as they are, and learned directions take room of their own.\n");
  }
  if (!families.empty() && !stopped(families)) {
    say("\nNext: kvspan chat, or kvspan eval ppl --at 8x to compare all methods on equal bytes.\n");
  }
  KVSPAN_CHECK_OK(write_json({{"question", demo_text.question},
                              {"rows", rows_json(*whole)},
                              {"families", rows_json(families)}},
                             flags.json));
  return stopped(*whole) || stopped(families) ? kInterruptedExit : 0;
}

}  // namespace

Action setup_demo(CLI::App& app) {
  auto flags = std::make_shared<DemoFlags>();
  add_model_flag(app, flags->model);
  add_thread_flags(app, flags->model);
  add_integer(app, "-n,--predict,--n-predict", flags->max_tokens, "Most tokens of an answer", 1,
              4096);
  add_json_flag(app, flags->json);
  set_footer(app,
             "Examples:\n"
             "  kvspan demo\n"
             "  kvspan demo -t 4 --json demo.json\n");
  return [flags] { return demo(*flags); };
}

}  // namespace kvspan::cli
