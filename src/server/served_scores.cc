// SPDX-License-Identifier: Apache-2.0
// Prompts whose own tokens are scored while a ServedContext reads them (server/prompt_scores.h).
#include <algorithm>

#include "base/fail.h"
#include "server/served_context.h"

namespace kvspan::server {

// Which sequences of the batch are prompts to be scored.
void ServedContext::find_scored(const BatchRecord& batch, const std::map<llama_seq_id, llama_pos>& first) {
  for (const auto& [id, position] : first) {
    std::shared_ptr<PromptScores>& scored = sequences_[id].scored;
    // One that was begun goes on where it stands, or has been given up.
    if (position > 0 && scored && scored->scores.size() == static_cast<std::size_t>(position)) continue;
    scored.reset();
    if (position > 0) continue;
    std::vector<llama_token> tokens;
    for (const RecordedRow& row : batch.rows) {
      if (row.sequence == id) tokens.push_back(row.token);
    }
    scored = wanted_scores().begin(tokens);
  }
}

// Reads rows of such sequences, some at a time: the results of many at once would take much memory.
Status ServedContext::decode_scored(std::span<const RecordedRow> rows) {
  const auto vocabulary = static_cast<std::size_t>(llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(native()))));
  for (std::size_t at = 0; at < rows.size(); at += kScoredRows) {
    const auto part = rows.subspan(at, std::min<std::size_t>(kScoredRows, rows.size() - at));
    std::vector<RecordedRow> with_results(part.begin(), part.end());
    for (RecordedRow& row : with_results) row.output = true;
    KVSPAN_CHECK_OK(decode(with_results));
    for (std::size_t i = 0; i < part.size(); ++i) {
      PromptScores& to = *sequences_[part[i].sequence].scored;
      const std::size_t next = to.scores.size() + 1;
      if (next >= to.tokens.size()) continue;
      const float* logits = llama_get_logits_ith(native(), static_cast<std::int32_t>(i));
      to.scores.push_back(score_token({logits, vocabulary}, to.tokens[next], to.top));
    }
  }
  return {};
}

}  // namespace kvspan::server
