// SPDX-License-Identifier: Apache-2.0
// Prompts whose own tokens are scored while a ServedContext reads them (server/prompt_scores.h).
#include <algorithm>

#include "server/served_context.h"

namespace kvspan::server {

// Which sequences of the batch are scored: those that have been since their first token, and begin
// as a wanted prompt does.
void ServedContext::find_scored(const BatchRecord& batch,
                                const std::map<llama_seq_id, llama_pos>& first) {
  if (wanted_scores_ == nullptr) return;
  for (const auto& [id, position] : first) {
    Sequence& sequence = sequences_[id];
    if (position > 0) {
      if (!sequence.scored) continue;
      // Its first tokens may have been cut or replaced since.
      const auto known = sequence.scored->tokens();
      const auto before = static_cast<std::size_t>(position);
      if (std::min(known.size(), sequence.tokens.size()) < before ||
          !std::equal(known.begin(), known.begin() + position, sequence.tokens.begin())) {
        sequence.scored.reset();
        continue;
      }
    }
    std::vector<llama_token> tokens(sequence.tokens.begin(), sequence.tokens.begin() + position);
    for (const RecordedRow& row : batch.rows) {
      if (row.sequence == id) tokens.push_back(row.token);
    }
    const std::size_t top = wanted_scores_->top_of(tokens);
    if (top == 0) {
      sequence.scored.reset();
    } else if (position == 0) {
      sequence.scored.emplace(top);
    }
  }
}

// Reads rows of such sequences, some at a time: the results of many at once would take much memory.
Status ServedContext::decode_scored(std::span<const RecordedRow> rows) {
  const auto vocabulary = static_cast<std::size_t>(
      llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(native()))));
  for (std::size_t at = 0; at < rows.size(); at += kScoredRows) {
    const auto part = rows.subspan(at, std::min<std::size_t>(kScoredRows, rows.size() - at));
    std::vector<RecordedRow> with_results(part.begin(), part.end());
    for (RecordedRow& row : with_results) row.output = true;
    KVSPAN_CHECK_OK(decode(with_results));
    for (std::size_t i = 0; i < part.size(); ++i) {
      const float* logits = llama_get_logits_ith(native(), static_cast<std::int32_t>(i));
      read_scored(part[i], {logits, vocabulary});
    }
  }
  return {};
}

void ServedContext::read_scored(const RecordedRow& row, std::span<const float> logits) {
  std::optional<SequenceScores>& scored = sequences_[row.sequence].scored;
  if (scored && !scored->read(row.position, row.token, logits)) scored.reset();
}

// The row whose result is asked for is a prompt's last.
void ServedContext::give_scores(const BatchRecord& batch) {
  for (const RecordedRow& row : batch.rows) {
    std::optional<SequenceScores>& scored = sequences_[row.sequence].scored;
    if (!row.output || !scored) continue;
    read_scored(row, {});
    if (scored) wanted_scores_->give(*scored);
    scored.reset();
  }
}

}  // namespace kvspan::server
