// SPDX-License-Identifier: Apache-2.0
// A llama_context of the server whose memory are kvspan's caches. The members are what the server
// asks of libllama's memory, decode and state functions, and answer as those do.
//
// The server ends the program where libllama would not go back, or would not load what it saved.
// So each sequence keeps its tokens: one that cannot go back, or was dropped to make room, is
// `lost` and read again when it is next decoded. The server is told first, by position_min(), so
// that it mostly reads the prompt anew itself.
#pragma once

#include <llama.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kvspan/llama.h"
#include "llama/pass_threads.h"
#include "server/batch_record.h"
#include "server/byte_forecast.h"
#include "server/kv_figures.h"
#include "server/prompt_scores.h"
#include "server/serve.h"

namespace kvspan::server {

class ServedContext {
 public:
  static Result<std::unique_ptr<ServedContext>> create(llama_model* model,
                                                       llama_context_params params,
                                                       const CachePlan& plan,
                                                       const std::string& model_path,
                                                       const ServeOptions& options,
                                                       const ProcessTimes& loading = {});

  llama_context* native() const noexcept { return caches_->context(); }
  // As libllama would have made them of the same parameters.
  std::uint32_t context_length() const noexcept { return n_ctx_; }
  std::uint32_t sequence_length() const noexcept { return n_ctx_seq_; }
  std::uint32_t most_sequences() const noexcept { return n_seq_max_; }
  // Whether any sequence can go back to any of its tokens.
  bool always_goes_back() const noexcept { return always_goes_back_; }

  // llama_process: 0, 1 no room, 2 aborted, -1 not a batch for these caches, -3 failed.
  std::int32_t process(const BatchRecord& batch);
  // The row that libllama knows by the number i of the last batch.
  std::int32_t native_row(std::int32_t i) const noexcept;

  // llama_memory_*.
  void clear();
  bool remove(llama_seq_id sequence, llama_pos from, llama_pos to);
  void copy(llama_seq_id from, llama_seq_id to, llama_pos first, llama_pos last);
  // The server takes it for the earliest position it can go back to; past all where there is none.
  llama_pos position_min(llama_seq_id sequence) const;
  llama_pos position_max(llama_seq_id sequence) const;

  // llama_state_seq_*_ext. state_bytes() makes the bytes and keeps them until they are taken.
  std::size_t state_bytes(llama_seq_id sequence);
  std::size_t take_state(llama_seq_id sequence, std::span<std::uint8_t> to);
  // Of bytes that this process made.
  std::size_t put_state(llama_seq_id sequence, std::span<const std::uint8_t> from);

  // llama_state_seq_{save,load}_file: the server's tokens, then the state. 0: failed, with a line
  // on standard error. No `tokens`: says how many there are, and loads nothing.
  std::size_t save_file(const std::string& path, llama_seq_id sequence,
                        std::span<const llama_token> tokens);
  std::size_t load_file(const std::string& path, llama_seq_id sequence,
                        std::span<llama_token> tokens, std::size_t* count);

  // May be called from any thread. While a batch is being decoded: the figures after the batch before.
  KvFigures figures() const;
  // Bytes that a sequence will take when it has `tokens` tokens.
  std::size_t forecast(std::int64_t tokens) const { return forecast_.bytes(tokens); }

 private:
  struct Sequence {
    std::vector<llama_token> tokens;
    bool lost = false;                     // the cache does not hold them
    std::uint64_t last_used = 0;           // by number of decode
    std::optional<SequenceScores> scored;  // while its prompt is read, if its tokens are scored
  };

  // What becomes of one batch.
  struct BatchPlan {
    std::map<llama_seq_id, llama_pos> first;  // position of its first row
    std::map<llama_seq_id, std::vector<llama_token>>
        coming;                                    // tokens of its prompt, for the prefix store
    std::map<llama_seq_id, bool> ends;             // its prompt ends in this batch
    std::map<llama_seq_id, llama_pos> pauses;      // where a block is saved before going on
    std::vector<RecordedRow> scored, early, rows;  // decoded in this order; early: before a pause
  };

  ServedContext() = default;
  std::int32_t process_locked(const BatchRecord& batch);
  void load_prefixes(const BatchRecord& batch, BatchPlan& plan);
  std::vector<llama_token> with_coming(llama_seq_id sequence, const BatchPlan& plan);
  void choose_pauses(BatchPlan& plan);
  void divide(const BatchRecord& batch, BatchPlan& plan);
  std::int32_t decode_parts(const BatchPlan& plan);
  Status restore(llama_seq_id sequence, std::size_t tokens);
  Status decode(std::span<const RecordedRow> rows);
  static constexpr std::uint32_t kScoredRows = 32;
  void find_scored(const BatchRecord& batch, const std::map<llama_seq_id, llama_pos>& first);
  Status decode_scored(std::span<const RecordedRow> rows);
  void read_scored(const RecordedRow& row, std::span<const float> logits);
  void give_scores(const BatchRecord& batch);
  void lose(llama_seq_id sequence);
  bool make_room(const std::map<llama_seq_id, std::int64_t>& added);
  Result<std::vector<std::byte>> encode_state(llama_seq_id sequence) const;
  Status decode_state(llama_seq_id sequence, std::span<const std::byte> bytes);
  // Forgets what the cache holds of it.
  void drop_cache(llama_seq_id sequence);
  void return_memory();
  void note_prompts(const BatchRecord& batch);
  KvFigures measure() const;
  void refresh();

  std::unique_ptr<LlamaCaches> caches_;
  std::optional<PassThreads> pass_;
  ByteForecast forecast_;
  std::string model_;
  std::uint32_t n_ctx_ = 0, n_ctx_seq_ = 0, n_seq_max_ = 1;
  bool always_goes_back_ = true;
  bool has_certificates_ = false;
  std::size_t budget_bytes_ = 0;
  std::shared_ptr<PrefixBlocks> prefix_blocks_;
  WantedScores* wanted_scores_ = nullptr;
  std::map<llama_seq_id, Sequence> sequences_;
  std::vector<std::int32_t> native_rows_;  // empty: each is its own
  std::vector<std::byte> state_;           // of state_sequence_, made and not taken yet
  llama_seq_id state_sequence_ = -1;
  std::uint64_t decodes_ = 0;
  // Since memory was last returned:
  std::size_t left_bytes_ = 0;   // by sequences that ended
  std::size_t tokens_read_ = 0;  // of prompts

  mutable std::mutex busy_;     // held while caches change
  mutable std::mutex figured_;  // held for figures_
  mutable KvFigures figures_;
  KvCounts counts_;
  std::size_t peak_bytes_ = 0;
};

}  // namespace kvspan::server
