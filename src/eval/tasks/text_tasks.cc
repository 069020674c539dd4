// SPDX-License-Identifier: Apache-2.0
#include "eval/tasks/text_tasks.h"

#include <algorithm>
#include <array>

#include "base/fail.h"
#include "eval/tasks/likelihood.h"

namespace kvspan {
namespace {

using TextKind = TextTaskInfo::Kind;

constexpr std::array kTextTasks{
    TextTaskInfo{"lambada", "The last word of a passage", TextKind::kLastWord},
    TextTaskInfo{"piqa", "Which of two ways reaches a goal", TextKind::kNormalisedChoice},
    TextTaskInfo{"hellaswag", "Which of four endings follows", TextKind::kNormalisedChoice},
    TextTaskInfo{"arc_easy", "Science questions, the easy ones", TextKind::kNormalisedChoice},
    TextTaskInfo{"arc_challenge", "Science questions, the hard ones", TextKind::kNormalisedChoice},
    TextTaskInfo{"winogrande", "Which of two names is meant", TextKind::kChoice},
    TextTaskInfo{"openbookqa", "Facts of elementary science", TextKind::kNormalisedChoice},
    TextTaskInfo{"boolq", "Yes or no, after a passage", TextKind::kChoice},
    TextTaskInfo{"copa", "Which cause or effect is meant", TextKind::kChoice},
};

std::size_t longest(const Engine& engine) {
  return static_cast<std::size_t>(engine.info().context);
}

Error at_row(const Error& error, std::string_view source, std::size_t row) {
  return fail(error.code, "'{}' row {}: {}", source, row + 1, error.message);
}

Measured truth(bool is) {
  return {is ? 1.0 : 0.0};
}

// What the two forms of target rows share: `outcome_of` turns a row's likelihood into numbers.
Result<TextTask> targets(Engine& engine, const Tokenizer& tokenizer,
                         std::span<const TargetRow> rows, std::string_view source,
                         std::vector<Metric> metrics,
                         std::function<RowOutcome(const Likelihood&)> outcome_of) {
  TextTask task;
  auto encoded = std::make_shared<std::vector<Continuation>>();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    auto found = encode_continuation(tokenizer, rows[i].prompt, rows[i].target, longest(engine));
    if (!found) return at_row(found.error(), source, i);
    task.truncated += found->truncated;
    encoded->push_back(std::move(*found));
  }
  task.metrics = std::move(metrics);
  task.rows = rows.size();
  task.score = [&engine, encoded, outcome_of](KvCache& cache,
                                              std::size_t row) -> Result<RowOutcome> {
    KVSPAN_TRY(const auto found, likelihoods(engine, cache, {&(*encoded)[row], 1}));
    return outcome_of(found.front());
  };
  return task;
}

}  // namespace

std::span<const TextTaskInfo> all_text_tasks() noexcept {
  return kTextTasks;
}

Result<TextTask> choice_task(Engine& engine, const Tokenizer& tokenizer,
                             std::span<const ChoiceRow> rows, bool normalised,
                             std::string_view source) {
  struct Encoded {
    std::vector<Continuation> continuations;
    std::vector<double> characters;
    std::size_t gold = 0;
  };
  TextTask task;
  auto encoded = std::make_shared<std::vector<Encoded>>();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    Encoded row{{}, {}, rows[i].gold};
    bool truncated = false;
    for (const ChoiceBranch& branch : rows[i].branches) {
      auto found =
          encode_continuation(tokenizer, branch.context, branch.continuation, longest(engine));
      if (!found) return at_row(found.error(), source, i);
      truncated |= found->truncated;
      row.continuations.push_back(std::move(*found));
      row.characters.push_back(branch.characters);
    }
    task.truncated += truncated;
    encoded->push_back(std::move(row));
  }
  task.metrics = {{"acc", Metric::Kind::kShare}};
  if (normalised) task.metrics.push_back({"acc_norm", Metric::Kind::kShare});
  task.metrics.push_back({"gold_nll", Metric::Kind::kNats});
  task.rows = rows.size();
  task.score = [&engine, encoded, normalised](KvCache& cache,
                                              std::size_t index) -> Result<RowOutcome> {
    const Encoded& row = (*encoded)[index];
    KVSPAN_TRY(const auto found, likelihoods(engine, cache, row.continuations));
    std::size_t best = 0, best_norm = 0;
    const auto norm = [&](std::size_t i) { return found[i].log_likelihood / row.characters[i]; };
    for (std::size_t i = 1; i < found.size(); ++i) {
      if (found[i].log_likelihood > found[best].log_likelihood) best = i;
      if (norm(i) > norm(best_norm)) best_norm = i;
    }
    RowOutcome out;
    out.metrics = {truth(best == row.gold)};
    if (normalised) out.metrics.push_back(truth(best_norm == row.gold));
    out.metrics.push_back({-found[row.gold].log_likelihood});
    return out;
  };
  return task;
}

Result<TextTask> target_task(Engine& engine, const Tokenizer& tokenizer,
                             std::span<const TargetRow> rows, std::string_view source) {
  return targets(engine, tokenizer, rows, source,
                 {{"nll", Metric::Kind::kNats},
                  {"token_acc", Metric::Kind::kShare},
                  {"exact", Metric::Kind::kShare}},
                 [](const Likelihood& found) {
                   const auto tokens = static_cast<double>(found.tokens);
                   return RowOutcome{{{-found.log_likelihood / tokens, tokens},
                                      {static_cast<double>(found.greedy) / tokens, tokens},
                                      truth(found.is_greedy())},
                                     {}};
                 });
}

Result<TextTask> last_word_task(Engine& engine, const Tokenizer& tokenizer,
                                std::span<const TargetRow> rows, std::string_view source) {
  return targets(engine, tokenizer, rows, source,
                 {{"acc", Metric::Kind::kShare}, {"ppl", Metric::Kind::kPerplexity}},
                 [](const Likelihood& found) {
                   return RowOutcome{{truth(found.is_greedy()), {-found.log_likelihood}}, {}};
                 });
}

Result<TextTask> make_text_task(const TextTaskInfo& info, Engine& engine,
                                const Tokenizer& tokenizer, std::string_view text,
                                std::string_view source, std::size_t limit) {
  const auto first = [&](auto& rows) {
    if (limit > 0 && rows.size() > limit) rows.resize(limit);
  };
  if (info.kind == TextKind::kLastWord) {
    KVSPAN_TRY(auto rows, parse_target_rows(text, source));
    first(rows);
    return last_word_task(engine, tokenizer, rows, source);
  }
  KVSPAN_TRY(auto rows, parse_choice_rows(text, source));
  first(rows);
  return choice_task(engine, tokenizer, rows, info.kind == TextKind::kNormalisedChoice, source);
}

}  // namespace kvspan
