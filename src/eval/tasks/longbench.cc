// SPDX-License-Identifier: Apache-2.0
#include "eval/tasks/longbench.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/fail.h"
#include "base/spelling.h"
#include "llama/generate.h"

namespace kvspan {
namespace {

constexpr std::string_view kPassages =
    "Answer the question based on the given passages. Only give me the answer and do not output "
    "any other words.\n\nThe following are given passages.\n{context}\n\nAnswer the question based "
    "on the given passages. Only give me the answer and do not output any other words.\n\n"
    "Question: {input}\nAnswer:";

// Spellings are LongBench's own ("asconcisely").
constexpr std::array kLongBenchTasks{
    LongBenchTask{
        "narrativeqa",
        "You are given a story, which can be either a novel or a movie script, and a question. "
        "Answer the question asconcisely as you can, using a single phrase if possible. Do not "
        "provide any explanation.\n\nStory: {context}\n\nNow, answer the question based on the "
        "story asconcisely as you can, using a single phrase if possible. Do not provide any "
        "explanation.\n\nQuestion: {input}\n\nAnswer:",
        128, word_f1_score, false, false},
    LongBenchTask{
        "qasper",
        "You are given a scientific article and a question. Answer the question as concisely as "
        "you can, using a single phrase or sentence if possible. If the question cannot be "
        "answered based on the information in the article, write \"unanswerable\". If the question "
        "is a yes/no question, answer \"yes\", \"no\", or \"unanswerable\". Do not provide any "
        "explanation.\n\nArticle: {context}\n\n Answer the question based on the above article as "
        "concisely as you can, using a single phrase or sentence if possible. If the question "
        "cannot be answered based on the information in the article, write \"unanswerable\". If "
        "the question is a yes/no question, answer \"yes\", \"no\", or \"unanswerable\". Do not "
        "provide any explanation.\n\nQuestion: {input}\n\nAnswer:",
        128, word_f1_score, false, false},
    LongBenchTask{"multifieldqa_en",
                  "Read the following text and answer briefly.\n\n{context}\n\nNow, answer the "
                  "following question based on the above text, only give me the answer and do not "
                  "output any other words.\n\nQuestion: {input}\nAnswer:",
                  64, word_f1_score, false, false},
    LongBenchTask{"hotpotqa", kPassages, 32, word_f1_score, false, false},
    LongBenchTask{"2wikimqa", kPassages, 32, word_f1_score, false, false},
    LongBenchTask{"musique", kPassages, 32, word_f1_score, false, false},
    LongBenchTask{"gov_report",
                  "You are given a report by a government agency. Write a one-page summary of the "
                  "report.\n\nReport:\n{context}\n\nNow, write a one-page summary of the "
                  "report.\n\nSummary:",
                  512, rouge_l_score, false, false},
    LongBenchTask{"qmsum",
                  "You are given a meeting transcript and a query containing a question or "
                  "instruction. Answer the query in one or more sentences.\n\nTranscript:\n"
                  "{context}\n\nNow, answer the query based on the above meeting transcript in one "
                  "or more sentences.\n\nQuery: {input}\nAnswer:",
                  512, rouge_l_score, false, false},
    LongBenchTask{"multi_news",
                  "You are given several news passages. Write a one-page summary of all news. "
                  "\n\nNews:\n{context}\n\nNow, write a one-page summary of all the "
                  "news.\n\nSummary:",
                  512, rouge_l_score, false, false},
    LongBenchTask{"trec",
                  "Please determine the type of the question below. Here are some examples of "
                  "questions.\n\n{context}\n{input}",
                  64, class_score, true, true},
    LongBenchTask{"triviaqa",
                  "Answer the question based on the given passage. Only give me the answer and do "
                  "not output any other words. The following are some "
                  "examples.\n\n{context}\n\n{input}",
                  32, word_f1_score, true, true},
    LongBenchTask{"samsum",
                  "Summarize the dialogue into a few short sentences. The following are some "
                  "examples.\n\n{context}\n\n{input}",
                  128, rouge_l_score, true, true},
    LongBenchTask{"passage_count",
                  "There are some paragraphs below sourced from Wikipedia. Some of them may be "
                  "duplicates. Please carefully read these paragraphs and determine how many "
                  "unique paragraphs there are after removing duplicates. In other words, how many "
                  "non-repeating paragraphs are there in total?\n\n{context}\n\nPlease enter the "
                  "final count of unique paragraphs after removing duplicates. The output format "
                  "should only contain the number, such as 1, 2, 3, and so on.\n\nThe final answer "
                  "is: ",
                  32, count_score, false, false},
    LongBenchTask{"passage_retrieval_en",
                  "Here are 30 paragraphs from Wikipedia, along with an abstract. Please determine "
                  "which paragraph the abstract is from.\n\n{context}\n\nThe following is an "
                  "abstract.\n\n{input}\n\nPlease enter the number of the paragraph that the "
                  "abstract is from. The answer format must be like \"Paragraph 1\", \"Paragraph "
                  "2\", etc.\n\nThe answer is: ",
                  32, paragraph_score, false, false},
    LongBenchTask{"lcc", "Please complete the code given below. \n{context}Next line of code:\n",
                  64, code_score, false, true},
    LongBenchTask{"repobench-p",
                  "Please complete the code given below. \n{context}{input}Next line of code:\n",
                  64, code_score, false, true},
};

std::string_view first_line_of(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of('\n'), text.size()));
  return text.substr(0, text.find('\n'));
}

// A line that is not empty has been ended.
bool has_first_line(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of('\n'), text.size()));
  return text.find('\n') != text.npos;
}

}  // namespace

std::span<const LongBenchTask> all_longbench_tasks() noexcept {
  return kLongBenchTasks;
}

Result<const LongBenchTask*> longbench_task(std::string_view name) {
  const std::string_view wanted = name.ends_with("_e") ? name.substr(0, name.size() - 2) : name;
  std::vector<std::string> names;
  for (const LongBenchTask& task : kLongBenchTasks) {
    if (task.name == wanted) return &task;
    names.emplace_back(task.name);
  }
  return fail(ErrorCode::kUnsupported, "no task of LongBench is called '{}' here{}; there are: {}",
              name, did_you_mean(name, names), fmt::join(names, ", "));
}

std::string longbench_prompt(const LongBenchTask& task, const LongBenchRow& row) {
  std::string out;
  std::string_view rest = task.prompt;
  while (!rest.empty()) {
    const std::size_t at = std::min(rest.find('{'), rest.size());
    out += rest.substr(0, at);
    rest.remove_prefix(at);
    if (rest.starts_with("{context}")) {
      out += row.context;
      rest.remove_prefix(9);
    } else if (rest.starts_with("{input}")) {
      out += row.input;
      rest.remove_prefix(7);
    }
  }
  return out;
}

double longbench_score(const LongBenchTask& task, const LongBenchRow& row,
                       std::string_view answer) {
  if (task.first_line) answer = first_line_of(answer);
  double best = 0.0;
  for (const std::string& truth : row.answers) {
    best = std::max(best, task.score(answer, truth, row.classes));
  }
  return best;
}

std::vector<Token> without_middle(std::vector<Token> tokens, std::size_t most) {
  if (tokens.size() <= most) return tokens;
  const auto half = static_cast<std::ptrdiff_t>(most / 2);
  tokens.erase(tokens.begin() + half, tokens.end() - half);
  return tokens;
}

ScoreRow longbench_scorer(Engine& engine, const Tokenizer& tokenizer, const LongBenchTask& task,
                          std::span<const LongBenchRow> rows, std::int32_t length,
                          PromptForm form) {
  return [&engine, &tokenizer, &task, rows, length, form](KvCache& cache,
                                                          std::size_t index) -> Result<RowOutcome> {
    const LongBenchRow& row = rows[index];
    const RetrievalSample sample{longbench_prompt(task, row), "", row.answers};
    KVSPAN_TRY(auto tokens,
               encode_sample(tokenizer, sample, task.plain ? PromptForm::kPlain : form));
    const auto most = static_cast<std::size_t>(length - task.answer_tokens);
    GenerateOptions options;
    options.max_tokens = task.answer_tokens;
    if (task.first_line) {
      options.enough = [](const std::string& text) { return has_first_line(text); };
    }
    KVSPAN_TRY(std::string text, greedy_answer(engine, tokenizer, cache,
                                               without_middle(std::move(tokens), most), options));
    const double score = longbench_score(task, row, text);
    return RowOutcome{{{score}}, std::move(text)};
  };
}

}  // namespace kvspan
