// SPDX-License-Identifier: Apache-2.0
#include "eval/retrieval.h"

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
  // The most units with which the first sample fits.
  Result<std::size_t> most_units() const;

 private:
  const RetrievalTask& task_;
  const SampleOptions& options_;
  const CountTokens& count_;
};

Result<std::size_t> Fitting::most_units() const {
  std::size_t low = task_.least_units;
  const RetrievalSample shortest = sample(low, 0);
  KVSPAN_TRY(const bool any, fits(shortest));
  if (!any) {
    KVSPAN_TRY(const std::size_t tokens, count_(shortest));
    return fail(ErrorCode::kInvalidArgument,
                "{} tokens are too few for {}: its shortest prompt takes {}, its answer {}",
                options_.length, task_.name, tokens, task_.answer_tokens);
  }
  const std::size_t limit = task_.most_units > 0 ? task_.most_units : options_.length;
  std::size_t high = std::min(2 * low, limit);  // not known to fit
  while (high < limit) {
    KVSPAN_TRY(const bool fit, fits(sample(high, 0)));
    if (!fit) break;
    low = high;
    high = std::min(2 * high, limit);
  }
  while (low < high) {
    const std::size_t middle = low + (high - low + 1) / 2;
    KVSPAN_TRY(const bool fit, fits(sample(middle, 0)));
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
  KVSPAN_TRY(const std::size_t most, fitting.most_units());
  std::vector<RetrievalSample> out;
  for (std::size_t i = 0; i < options.count; ++i) {
    // Another sample's words can take more tokens than the first one's.
    for (std::size_t units = most;; units -= std::max<std::size_t>(1, units / 64)) {
      RetrievalSample sample = fitting.sample(units, i);
      KVSPAN_TRY(const bool fit, fitting.fits(sample));
      if (fit) {
        out.push_back(std::move(sample));
        break;
      }
      if (units <= task.least_units) {
        return fail(ErrorCode::kInvalidArgument, "{} tokens are too few for sample {} of {}",
                    options.length, i + 1, task.name);
      }
    }
  }
  return out;
}

}  // namespace kvspan
