// SPDX-License-Identifier: Apache-2.0
// kvspan demo: a long text, a question about it, and its answer with the full cache; then the same
// question about the paragraphs around the answer, one row for each family of caches. Reading the
// long text with each of them would take a minute and more a row.
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
#include "cli/output/table.h"
#include "cli/terminal/interrupt.h"
#include "cli/terminal/terminal.h"

namespace kvspan::cli {
namespace {

// The caches compared, one row each; the first is what the others are held against.
constexpr std::array kDemoRecipes{"full",
                                  "quant:bits=4",
                                  "bands:bits=3",
                                  "bands:bits=2",
                                  "spectral:rk=d/4,rv=d/2,store=f16",
                                  "streaming:size=256",
                                  "static:rk=d/2,rv=d/2",
                                  "fd:rk=d/2,rv=d/2,min_chunk=256",
                                  "oja:ratio=0.6"};

struct DemoFlags {
  ModelFlags model;
  std::string json;
  std::int64_t max_tokens = 64;
};

Result<Answer> answer_with(Session& session, const char* recipe, std::span<const Token> tokens,
                           const DemoFlags& flags, bool text_wanted) {
  KVSPAN_TRY(session.cache, new_cache(*session.engine, recipe));
  KVSPAN_TRY(const auto sampler, Sampler::make({.temperature = 0.0f}, *session.engine));
  GenerateOptions options;
  options.max_tokens = static_cast<std::int32_t>(flags.max_tokens);
  options.context = session.context;
  bool labelled = false;  // with the first piece: until then the progress bar has the line
  auto answer = answer_prompt(session, tokens, *sampler, options, [&](std::string_view piece) {
    if (!text_wanted) return;
    if (!labelled) {
      fmt::print("{}: ", styled(session.cache->recipe(), Style::kBold, describe_terminal(1)));
      labelled = true;
    }
    std::fwrite(piece.data(), 1, piece.size(), stdout);
    std::fflush(stdout);
  });
  if (labelled) {
    fmt::print("\n");
    std::fflush(stdout);  // before the next progress bar, which goes elsewhere
  }
  return answer;
}

std::string table_of(const std::vector<Answer>& answers) {
  using Align = Table::Align;
  Table table({{"recipe"},
               {"tokens", Align::kRight},
               {"KV bytes", Align::kRight},
               {"f16 / KV", Align::kRight},
               {"prefill tok/s", Align::kRight},
               {"decode tok/s", Align::kRight},
               {"answer"}});
  for (const Answer& a : answers) {
    table.add_row({a.recipe, format_count(static_cast<std::size_t>(a.cache_tokens)),
                   format_count(a.kv_bytes), format_ratio(a.kv_bytes_full, a.kv_bytes),
                   format_rate(a.read_tokens, a.read_seconds),
                   format_rate(a.decoded_tokens, a.decode_seconds), a.generation.text});
  }
  const Terminal terminal = describe_terminal(1);
  return table.text(terminal.is_terminal ? static_cast<std::size_t>(terminal.width) : 0);
}

// What the rows of one text need.
struct Comparison {
  Session& session;
  const DemoFlags& flags;
  std::vector<Answer> answers;
  Json rows = Json::array();
  bool cancelled = false;

  Status add(const char* recipe, std::span<const Token> tokens) {
    KVSPAN_TRY(Answer answer,
               answer_with(session, recipe, tokens, flags, /*text_wanted=*/flags.json != "-"));
    cancelled = answer.generation.reason == StopReason::kCancelled;
    rows.push_back(to_json(answer));
    answers.push_back(std::move(answer));
    return {};
  }
};

// Answers of every cache about the short text.
Status compare_families(Comparison& comparison, std::span<const Token> tokens) {
  for (const char* recipe : kDemoRecipes) {
    KVSPAN_CHECK_OK(comparison.add(recipe, tokens));
    if (comparison.cancelled) break;
  }
  return {};
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
  const bool text_wanted = flags.json != "-";
  if (text_wanted) {
    fmt::print("A text of {} tokens, and a question about it:\n{}\n\n", format_count(all.size()),
               styled(demo_text.question, Style::kBold, describe_terminal(1)));
  }
  Comparison whole{session, flags, {}}, part{session, flags, {}};
  KVSPAN_CHECK_OK(whole.add(kDemoRecipes.front(), all));
  if (text_wanted) fmt::print("\n{}", table_of(whole.answers));
  if (!whole.cancelled) {
    if (text_wanted) {
      fmt::print(
          "\nThe same question about the {} tokens around the answer, one cache after "
          "another:\n",
          format_count(some.size()));
    }
    KVSPAN_CHECK_OK(compare_families(part, some));
    if (text_wanted) {
      fmt::print(
          "\n{}\nf16 / KV: how many times smaller than every row in f16. It grows with the "
          "text: the first\nand last tokens stay as they are, and learned directions take "
          "room of their own.\n",
          table_of(part.answers));
    }
  }
  KVSPAN_CHECK_OK(
      write_json({{"question", demo_text.question}, {"rows", whole.rows}, {"families", part.rows}},
                 flags.json));
  return whole.cancelled || part.cancelled ? kInterruptedExit : 0;
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
