// SPDX-License-Identifier: Apache-2.0
#include "server/served_context.h"

#include <algorithm>
#include <limits>

#include "base/fail.h"
#include "base/memory.h"
#include "recipe/recipe.h"
#include "store/store_key.h"

namespace kvspan::server {
namespace {

constexpr double kCertificateShare = 0.01;  // of the time of decoding

std::uint32_t padded(std::uint32_t n) {
  return (n + 255) / 256 * 256;  // as libllama pads contexts
}

bool goes_back(const CacheShape& shape, const std::string& recipe) {
  for (const LayerShape& layer : shape.layers) {
    if (layer.window > 0 || layer.chunk > 0) return false;
  }
  const auto parsed = Recipe::parse(recipe);
  if (!parsed) return false;
  return std::all_of(parsed->parts().begin(), parsed->parts().end(), [](const RecipePart& part) {
    return part.method().tokens != TokenUse::kDropsSome;
  });
}

}  // namespace

Result<std::unique_ptr<ServedContext>> ServedContext::create(llama_model* model,
                                                             llama_context_params params,
                                                             const CachePlan& plan,
                                                             const std::string& model_path,
                                                             const ServeOptions& options,
                                                             const ProcessTimes& loading) {
  std::unique_ptr<ServedContext> self(new ServedContext);
  const auto trained = static_cast<std::uint32_t>(llama_model_n_ctx_train(model));
  self->n_seq_max_ = std::max(1u, params.n_seq_max);
  self->n_ctx_ = padded(params.n_ctx != 0 ? params.n_ctx : trained);
  self->n_ctx_seq_ = params.kv_unified ? self->n_ctx_ : padded(self->n_ctx_ / self->n_seq_max_);
  if (!params.kv_unified) self->n_ctx_ = self->n_ctx_seq_ * self->n_seq_max_;
  params.n_batch = std::min(params.n_batch, self->n_ctx_);
  params.n_ctx = self->n_ctx_seq_;
  // So many results are asked for where a prompt is scored; the probe of the model asks for four.
  if (params.n_outputs_max != 0) params.n_outputs_max = std::max(params.n_outputs_max, kScoredRows);
  if (params.n_outputs_max_per_seq != 0) {
    params.n_outputs_max_per_seq = std::max(params.n_outputs_max_per_seq, kScoredRows);
  }
  // Samplers within the graph take one result of a sequence at a time, and the probe asks for more.
  const std::span samplers(params.samplers, params.n_samplers);
  params.samplers = nullptr;
  params.n_samplers = 0;
  const Calibration* calibration = plan.calibration ? &*plan.calibration : nullptr;
  KVSPAN_TRY(self->caches_,
             LlamaCaches::create(model, params, {plan.recipe, calibration, model_path}));
  for (const llama_sampler_seq_config& one : samplers) {
    llama_set_sampler(self->native(), one.seq_id, one.sampler);
  }
  self->model_ = model_path;
  fmt::print(stderr, "{}", self->caches_->device_note());
  self->always_goes_back_ = !self->caches_->on_device() &&
                            goes_back(self->caches_->shape(), self->caches_->recipe()) &&
                            !llama_model_is_hybrid(model) && !llama_model_is_recurrent(model);
  self->pass_.emplace(self->native(), loading, options.adapt_threads, options.process_times);
  self->budget_bytes_ = options.kv_budget_bytes;
  self->prefix_blocks_ = options.prefix_blocks;
  self->wanted_scores_ = options.wanted_scores;
  self->has_certificates_ = self->caches_->sample_certificates(kCertificateShare);
  if (self->budget_bytes_ > 0) {
    self->forecast_ = ByteForecast::measure(self->caches_->shape(), self->caches_->factory());
  }
  self->figures_ = self->measure();
  return self;
}

std::int32_t ServedContext::process(const BatchRecord& batch) {
  const std::lock_guard lock(busy_);
  state_.clear();
  state_sequence_ = -1;
  const std::int32_t status = process_locked(batch);
  if (status == 0) note_prompts(batch);
  refresh();
  return status;
}

std::int32_t ServedContext::process_locked(const BatchRecord& batch) {
  if (!batch.refused.empty() || batch.rows.empty()) {
    fmt::print(stderr, "kvspan: {}\n",
               batch.rows.empty() ? "a batch without tokens" : batch.refused);
    return -1;
  }
  ++decodes_;
  std::map<llama_seq_id, std::int64_t> added;
  BatchPlan plan;
  for (const RecordedRow& row : batch.rows) {
    ++added[row.sequence];
    plan.first.try_emplace(row.sequence, row.position);
    sequences_[row.sequence].last_used = decodes_;
  }
  // All of the batch stay: what makes room for one must not be another one's.
  for (const auto& [id, position] : plan.first) {
    if (sequences_[id].lost) added[id] += position;
  }
  if (!make_room(added)) return 1;
  for (const auto& [id, position] : plan.first) {
    if (!sequences_[id].lost) continue;
    if (const Status status = restore(id, static_cast<std::size_t>(position)); !status) {
      fmt::print(stderr, "kvspan: sequence {}: {}\n", id, status.error().message);
      return status.error().code == ErrorCode::kOutOfBudget ? 1 : -1;
    }
  }
  find_scored(batch, plan.first);
  if (prefix_blocks_) {
    load_prefixes(batch, plan);
    if (!always_goes_back_) choose_pauses(plan);
  }
  divide(batch, plan);
  if (const std::int32_t code = decode_parts(plan); code != 0) return code;
  give_scores(batch);

  for (const RecordedRow& row : batch.rows) sequences_[row.sequence].tokens.push_back(row.token);
  counts_.decodes += 1;
  counts_.decoded_tokens += plan.scored.size() + plan.early.size() + plan.rows.size();
  for (const auto& [id, more] : plan.coming) {
    if (!more.empty()) prefix_blocks_->save(*caches_, id, sequences_[id].tokens, plan.ends[id]);
  }
  return 0;
}

// Finds tokens of prompts, and which prompts end here: a row whose result is asked for has to be
// computed.
void ServedContext::load_prefixes(const BatchRecord& batch, BatchPlan& plan) {
  for (const RecordedRow& row : batch.rows) {
    if (sequences_[row.sequence].scored) continue;  // all of them are computed
    if (row.output) plan.ends[row.sequence] = true;
    if (!plan.ends[row.sequence]) plan.coming[row.sequence].push_back(row.token);
  }
  for (const auto& [id, more] : plan.coming) {
    const llama_pos first = plan.first[id];
    if (caches_->tokens(id) != first || more.empty()) continue;
    prefix_blocks_->load(*caches_, id, with_coming(id, plan));
    counts_.prefix_tokens += static_cast<std::uint64_t>(caches_->tokens(id) - first);
  }
}

std::vector<llama_token> ServedContext::with_coming(llama_seq_id id, const BatchPlan& plan) {
  std::vector<llama_token> all = sequences_[id].tokens;
  const std::vector<llama_token>& more = plan.coming.at(id);
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

// A cache that cannot go back serves others only where it stands at the end of a block.
void ServedContext::choose_pauses(BatchPlan& plan) {
  for (const auto& [id, more] : plan.coming) {
    const llama_pos end = plan.first[id] + static_cast<llama_pos>(more.size()) + 1;
    const llama_pos pause = end / kBlockTokens * kBlockTokens;
    if (plan.ends[id] && pause > caches_->tokens(id) && pause < end) plan.pauses[id] = pause;
  }
}

void ServedContext::divide(const BatchRecord& batch, BatchPlan& plan) {
  plan.rows.reserve(batch.rows.size());
  native_rows_.clear();
  std::vector<std::int32_t> held(batch.rows.size(), -1);
  for (std::size_t i = 0; i < batch.rows.size(); ++i) {
    const RecordedRow& row = batch.rows[i];
    if (!row.output && sequences_[row.sequence].scored) {
      plan.scored.push_back(row);
      continue;
    }
    // Only blocks of a prefix are ahead of a batch.
    if (prefix_blocks_ && !row.output && row.position < caches_->tokens(row.sequence)) continue;
    const auto pause = plan.pauses.find(row.sequence);
    if (pause != plan.pauses.end() && row.position < pause->second) {
      plan.early.push_back(row);
      continue;
    }
    held[i] = static_cast<std::int32_t>(plan.rows.size());
    plan.rows.push_back(row);
  }
  if (plan.rows.size() != batch.rows.size()) native_rows_ = std::move(held);
}

std::int32_t ServedContext::decode_parts(const BatchPlan& plan) {
  for (const std::vector<RecordedRow>* part : {&plan.scored, &plan.early, &plan.rows}) {
    if (part->empty()) continue;
    if (const Status status = part == &plan.scored ? decode_scored(*part) : decode(*part);
        !status) {
      const Error& error = status.error();
      // Sequences that could not go back to what they were are empty.
      for (const auto& [id, position] : plan.first) {
        if (caches_->tokens(id) != position) lose(id);
      }
      if (error.code == ErrorCode::kCancelled) return 2;
      fmt::print(stderr, "kvspan: {}\n", error.message);
      return error.code == ErrorCode::kOutOfBudget       ? 1
             : error.code == ErrorCode::kInvalidArgument ? -1
                                                         : -3;
    }
    if (part != &plan.early) continue;
    for (const auto& [id, pause] : plan.pauses) {
      std::vector<llama_token> all = with_coming(id, plan);
      all.resize(static_cast<std::size_t>(pause));
      prefix_blocks_->save(*caches_, id, all, true);
    }
  }
  return 0;
}

// Memory returns when prompts have been read to their ends.
void ServedContext::note_prompts(const BatchRecord& batch) {
  bool ends = false;
  for (const RecordedRow& row : batch.rows) {
    tokens_read_ += row.output ? 0 : 1;
    ends |= row.output;
  }
  if (ends) return_memory();
}

std::int32_t ServedContext::native_row(std::int32_t i) const noexcept {
  if (i < 0 || static_cast<std::size_t>(i) >= native_rows_.size()) return i;
  return native_rows_[static_cast<std::size_t>(i)];
}

Status ServedContext::decode(std::span<const RecordedRow> rows) {
  std::vector<llama_token> tokens;
  std::vector<llama_pos> positions;
  std::vector<llama_seq_id> ids;
  std::vector<llama_seq_id*> id_lists;
  std::vector<std::int32_t> id_counts(rows.size(), 1);
  std::vector<std::int8_t> outputs;
  ids.reserve(rows.size());
  for (const RecordedRow& row : rows) {
    tokens.push_back(row.token);
    positions.push_back(row.position);
    ids.push_back(row.sequence);
    id_lists.push_back(&ids.back());
    outputs.push_back(row.output ? 1 : 0);
  }
  llama_batch batch{};
  batch.n_tokens = static_cast<std::int32_t>(rows.size());
  batch.token = tokens.data();
  batch.pos = positions.data();
  batch.n_seq_id = id_counts.data();
  batch.seq_id = id_lists.data();
  batch.logits = outputs.data();
  pass_->begin();
  KVSPAN_CHECK_OK(caches_->decode(batch));
  pass_->end();
  return {};
}

// Reads the first tokens of a lost sequence again, for which there is room.
Status ServedContext::restore(llama_seq_id id, std::size_t count) {
  Sequence& sequence = sequences_[id];
  if (sequence.tokens.size() < count) {
    return fail(ErrorCode::kInvalidArgument, "goes on at {}, and {} tokens of it are known", count,
                sequence.tokens.size());
  }
  drop_cache(id);
  const std::size_t most = llama_n_batch(native());
  for (std::size_t at = 0; at < count; at += most) {
    std::vector<RecordedRow> rows;
    for (std::size_t i = at; i < std::min(count, at + most); ++i) {
      rows.push_back({sequence.tokens[i], static_cast<llama_pos>(i), id, false});
    }
    KVSPAN_CHECK_OK(decode(rows));
  }
  sequence.tokens.resize(count);
  sequence.lost = false;
  counts_.restored_tokens += count;
  return {};
}

void ServedContext::drop_cache(llama_seq_id id) {
  left_bytes_ += caches_->bytes(id).total;
  caches_->clear(id);
}

// The C library keeps what is freed for later. Where that may be more than a small part of what is
// held, it goes back to the system: else a process would stay as large as it once was. Sequences
// that end leave what they held; a prompt that is read, what its rows took before they were coded.
void ServedContext::return_memory() {
  constexpr std::size_t kLeastBytes = std::size_t{1} << 20, kLeastTokens = 512;
  const bool left = left_bytes_ >= std::max(kLeastBytes, caches_->bytes().total / 64);
  if (!left && tokens_read_ < kLeastTokens) return;
  return_free_memory();
  left_bytes_ = tokens_read_ = 0;
}

void ServedContext::lose(llama_seq_id id) {
  drop_cache(id);
  Sequence& sequence = sequences_[id];
  sequence.lost = !sequence.tokens.empty();
}

// Whether the sequences fit the budget with so many tokens more. Those that are not part of the
// batch make room, the one that was not used for longest first.
bool ServedContext::make_room(const std::map<llama_seq_id, std::int64_t>& added) {
  if (budget_bytes_ == 0) return true;
  std::size_t coming = 0;
  for (const auto& [id, count] : added) {
    const std::int64_t held = caches_->tokens(id);
    coming += forecast_.bytes(held + count) - forecast_.bytes(held);
  }
  while (caches_->bytes().total + coming > budget_bytes_) {
    llama_seq_id oldest = -1;
    for (const auto& [id, sequence] : sequences_) {
      if (added.contains(id) || caches_->tokens(id) == 0) continue;
      if (oldest < 0 || sequence.last_used < sequences_[oldest].last_used) oldest = id;
    }
    if (oldest < 0) return false;
    lose(oldest);
    ++counts_.dropped_sequences;
  }
  return_memory();
  return true;
}

void ServedContext::clear() {
  const std::lock_guard lock(busy_);
  left_bytes_ += caches_->bytes().total;
  caches_->clear();
  sequences_.clear();
  return_memory();
  refresh();
}

bool ServedContext::remove(llama_seq_id id, llama_pos from, llama_pos to) {
  const std::lock_guard lock(busy_);
  bool done = true;
  for (auto& [each, sequence] : sequences_) {
    if (id >= 0 && each != id) continue;
    const auto held = static_cast<llama_pos>(sequence.tokens.size());
    if (from >= held) continue;
    if (to >= 0 && to < held) {
      done = false;  // tokens behind the hole would stay
    } else if (from <= 0) {
      drop_cache(each);
      sequence.tokens.clear();
      sequence.lost = false;
    } else {
      sequence.tokens.resize(static_cast<std::size_t>(from));
      if (!sequence.lost && !caches_->truncate(each, from)) lose(each);
    }
  }
  return_memory();
  refresh();
  return done;
}

void ServedContext::copy(llama_seq_id from, llama_seq_id to, llama_pos first, llama_pos last) {
  if (from == to) return;
  const std::lock_guard lock(busy_);
  const Sequence source = sequences_[from];
  sequences_[to] = source;
  if (!caches_->fork(from, to)) lose(to);
  if (last >= 0 && last < static_cast<llama_pos>(source.tokens.size())) {
    sequences_[to].tokens.resize(static_cast<std::size_t>(last));
    if (!sequences_[to].lost && !caches_->truncate(to, last)) lose(to);
  }
  (void)first;  // a copy begins at the beginning: rows without those before them are no sequence
  refresh();
}

llama_pos ServedContext::position_min(llama_seq_id id) const {
  const auto found = sequences_.find(id);
  if (found == sequences_.end() || found->second.tokens.empty()) return -1;
  if (found->second.lost) return std::numeric_limits<llama_pos>::max();
  return std::max(caches_->least_tokens(id) - 1, 0);
}

llama_pos ServedContext::position_max(llama_seq_id id) const {
  const auto found = sequences_.find(id);
  return found == sequences_.end() ? -1 : static_cast<llama_pos>(found->second.tokens.size()) - 1;
}

KvFigures ServedContext::measure() const {
  KvFigures figures;
  figures.model = model_;
  figures.recipe = caches_->recipe();
  figures.context = n_ctx_seq_;
  figures.most_sequences = n_seq_max_;
  figures.bytes = caches_->bytes();
  figures.layer_bytes = caches_->layer_bytes();
  if (has_certificates_) figures.certificates = caches_->certificates();
  for (const auto& [id, sequence] : sequences_) {
    const std::int32_t tokens = caches_->tokens(id);
    if (tokens == 0) continue;
    figures.sequences.push_back({id, tokens, caches_->bytes(id).total});
    figures.tokens += tokens;
    figures.f16_bytes += full_rank_f16_bytes(caches_->shape(), tokens);
  }
  figures.counts = counts_;
  figures.peak_bytes = std::max(peak_bytes_, figures.bytes.total);
  return figures;
}

// With busy_ held.
void ServedContext::refresh() {
  KvFigures now = measure();
  peak_bytes_ = now.peak_bytes;
  const std::lock_guard lock(figured_);
  figures_ = std::move(now);
}

KvFigures ServedContext::figures() const {
  const std::lock_guard lock(figured_);
  return figures_;
}

}  // namespace kvspan::server
