// SPDX-License-Identifier: Apache-2.0
#include "eval/retrieval/retrieval.h"

#include <algorithm>

#include "base/fail.h"

namespace kvspan {
namespace {

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

// Seeds of neighbouring samples must not give related numbers; Random mixes the seed itself.
Random random_of(const SampleOptions& options, std::size_t index) {
  return Random(Random(options.seed).bits() + 0x9e3779b97f4a7c15ull * (index + 1));
}

class Fitting {
 public:
  Fitting(const RetrievalTask& task, const SampleOptions& options, const CountTokens& count)
      : task_(task), options_(options), count_(count) {}

  RetrievalSample sample(std::size_t units, std::size_t index) const {
    Random random = random_of(options_, index);
    return task_.make(units, index, random);
  }
  Result<bool> fits(const RetrievalSample& sample) const {
    KVSPAN_TRY(const std::size_t tokens, count_(sample));
    return tokens + static_cast<std::size_t>(task_.answer_tokens) <= options_.length;
  }
  // The most units with which sample `index` fits, searched for around `near`.
  Result<std::size_t> most_units(std::size_t index, std::size_t near) const;

 private:
  const RetrievalTask& task_;
  const SampleOptions& options_;
  const CountTokens& count_;
};

Result<std::size_t> Fitting::most_units(std::size_t index, std::size_t near) const {
  const std::size_t least = task_.least_units;
  const RetrievalSample shortest = sample(least, index);
  KVSPAN_TRY(const bool any, fits(shortest));
  if (!any) {
    KVSPAN_TRY(const std::size_t tokens, count_(shortest));
    return fail(ErrorCode::kInvalidArgument,
                "{} tokens are too few for {}: its shortest prompt takes {}, its answer {}",
                options_.length, task_.name, tokens, task_.answer_tokens);
  }
  // Low fits, and nothing beyond high does: every unit takes at least a token.
  std::size_t low = least;
  std::size_t high = std::max(least, task_.most_units > 0 ? task_.most_units : options_.length);
  if (near > low && near <= high) {
    KVSPAN_TRY(const bool fit, fits(sample(near, index)));
    (fit ? low : high) = fit ? near : near - 1;
  }
  // Growing steps up, so that no prompt is made that is much longer than the one looked for.
  for (std::size_t step = std::max<std::size_t>(1, low / 32); low < high; step *= 2) {
    const std::size_t at = std::min(low + step, high);
    KVSPAN_TRY(const bool fit, fits(sample(at, index)));
    (fit ? low : high) = fit ? at : at - 1;
    if (!fit) break;
  }
  while (low < high) {
    const std::size_t middle = low + (high - low + 1) / 2;
    KVSPAN_TRY(const bool fit, fits(sample(middle, index)));
    if (fit) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

}  // namespace

double match_score(RetrievalTask::Match match, std::string_view text,
                   const std::vector<std::string>& answers) {
  const std::string found = lower(text);
  std::size_t matches = 0;
  for (const std::string& answer : answers) {
    matches += found.find(lower(answer)) != std::string::npos;
  }
  if (match == RetrievalTask::Match::kAny) return matches > 0 ? 1.0 : 0.0;
  return answers.empty() ? 0.0 : static_cast<double>(matches) / static_cast<double>(answers.size());
}

Result<std::vector<RetrievalSample>> make_samples(const RetrievalTask& task,
                                                  const SampleOptions& options,
                                                  const CountTokens& count) {
  const Fitting fitting(task, options, count);
  std::vector<RetrievalSample> out;
  std::size_t units = task.least_units;
  for (std::size_t i = 0; i < options.count; ++i) {
    KVSPAN_TRY(units, fitting.most_units(i, units));
    out.push_back(fitting.sample(units, i));
  }
  return out;
}

}  // namespace kvspan
