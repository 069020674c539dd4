// SPDX-License-Identifier: Apache-2.0
// What the server reaches where it calls libllama: a context on kvspan's caches answers by its
// ServedContext, another as libllama does. Which calls arrive here is decided by
// scripts/join_server.sh: all that libllama_passed.txt does not name.
#include <fmt/format.h>
#include <llama.h>

#include <span>

#include "server/batch_record.h"
#include "server/served_contexts.h"

using kvspan::server::BatchRecord;
using kvspan::server::find_served;
using kvspan::server::ServedContext;

// What is not in llama.h, of the staging header that the server uses (llama-ext.h).
float* llama_get_embeddings_nextn_ith(llama_context* context, std::int32_t i);
// The server's own, for contexts of libllama.
extern "C" int kvspan_server_can_seq_rm(llama_context* context);

// Which row of libllama's last pass holds what the server asks for by its number in the batch.
static std::int32_t native_row(llama_context* context, std::int32_t i) {
  const ServedContext* served = find_served(context);
  return served != nullptr ? served->native_row(i) : i;
}

extern "C" {

llama_model* kvspan_serve_model_load_from_file(const char* path, llama_model_params params) {
  return kvspan::server::load_model(path, params);
}
void kvspan_serve_model_free(llama_model* model) {
  kvspan::server::free_model(model);
}
// The caches know the windows of layers, and say themselves how far they go back.
std::int32_t kvspan_serve_model_n_swa(const llama_model* model) {
  return kvspan::server::is_served(model) ? 0 : llama_model_n_swa(model);
}

llama_context* kvspan_serve_init_from_model(llama_model* model, llama_context_params params) {
  return kvspan::server::make_context(model, params);
}
void kvspan_serve_free(llama_context* context) {
  kvspan::server::free_context(context);
}

std::uint32_t kvspan_serve_n_ctx(const llama_context* context) {
  const ServedContext* served = find_served(context);
  return served != nullptr ? served->context_length() : llama_n_ctx(context);
}
std::uint32_t kvspan_serve_n_ctx_seq(const llama_context* context) {
  const ServedContext* served = find_served(context);
  return served != nullptr ? served->sequence_length() : llama_n_ctx_seq(context);
}
std::uint32_t kvspan_serve_n_seq_max(const llama_context* context) {
  const ServedContext* served = find_served(context);
  return served != nullptr ? served->most_sequences() : llama_n_seq_max(context);
}
void kvspan_serve_set_causal_attn(llama_context* context, bool causal) {
  if (find_served(context) == nullptr) return llama_set_causal_attn(context, causal);
  if (!causal) fmt::print(stderr, "kvspan: attention of the caches is causal\n");
}
// common_context_seq_rm_type: 1 if part of a sequence can be removed, 2 if only all of it.
int kvspan_serve_context_can_seq_rm(llama_context* context) {
  ServedContext* served = find_served(context);
  if (served == nullptr) return kvspan_server_can_seq_rm(context);
  served->clear();
  return served->always_goes_back() ? 1 : 2;
}

// Batches.
llama_batch_ext* kvspan_serve_batch_ext_init(llama_context* context) {
  auto* batch = new BatchRecord;
  if (find_served(context) == nullptr) batch->native = llama_batch_ext_init(context);
  batch->most = llama_n_batch(context);
  return batch->handle();
}
void kvspan_serve_batch_ext_free(llama_batch_ext* handle) {
  if (handle == nullptr) return;
  BatchRecord* batch = BatchRecord::of(handle);
  if (batch->native != nullptr) llama_batch_ext_free(batch->native);
  delete batch;
}
void kvspan_serve_batch_ext_clear(llama_batch_ext* handle) {
  BatchRecord* batch = BatchRecord::of(handle);
  if (batch->native != nullptr) return llama_batch_ext_clear(batch->native);
  batch->rows.clear();
  batch->refused.clear();
}
std::int32_t kvspan_serve_batch_ext_add_token(llama_batch_ext* handle, llama_seq_id sequence,
                                              llama_token token) {
  BatchRecord* batch = BatchRecord::of(handle);
  if (batch->native != nullptr) return llama_batch_ext_add_token(batch->native, sequence, token);
  if (batch->rows.size() >= batch->most) return -1;
  if (token < 0) return -2;
  batch->rows.push_back({token, 0, sequence, false});
  return static_cast<std::int32_t>(batch->rows.size()) - 1;
}
std::int32_t kvspan_serve_batch_ext_add_embd(llama_batch_ext* handle, llama_seq_id sequence,
                                             llama_embd embedding) {
  BatchRecord* batch = BatchRecord::of(handle);
  if (batch->native != nullptr) return llama_batch_ext_add_embd(batch->native, sequence, embedding);
  if (batch->rows.size() >= batch->most) return -1;
  batch->refused = "kvspan's caches take tokens, not embeddings";
  batch->rows.push_back({LLAMA_TOKEN_NULL, 0, sequence, false});
  return static_cast<std::int32_t>(batch->rows.size()) - 1;
}
bool kvspan_serve_batch_ext_add_seq(llama_batch_ext* handle, std::int32_t i, llama_seq_id sequence) {
  BatchRecord* batch = BatchRecord::of(handle);
  if (batch->native != nullptr) return llama_batch_ext_add_seq(batch->native, i, sequence);
  if (i < 0 || static_cast<std::size_t>(i) >= batch->rows.size()) return false;
  if (batch->rows[static_cast<std::size_t>(i)].sequence != sequence) {
    batch->refused = "a token of several sequences; kvspan's caches take it for one";
  }
  return true;
}
bool kvspan_serve_batch_ext_set_embd_token(llama_batch_ext* handle, std::int32_t i,
                                           llama_embd embedding) {
  BatchRecord* batch = BatchRecord::of(handle);
  if (batch->native != nullptr) return llama_batch_ext_set_embd_token(batch->native, i, embedding);
  batch->refused = "kvspan's caches take tokens, not embeddings";
  return true;
}
bool kvspan_serve_batch_ext_set_output_logits(llama_batch_ext* handle, std::int32_t i, bool output) {
  BatchRecord* batch = BatchRecord::of(handle);
  if (batch->native != nullptr) return llama_batch_ext_set_output_logits(batch->native, i, output);
  if (i < 0 || static_cast<std::size_t>(i) >= batch->rows.size()) return false;
  batch->rows[static_cast<std::size_t>(i)].output = output;
  return true;
}
bool kvspan_serve_batch_ext_set_pos(llama_batch_ext* handle, std::int32_t i, const llama_pos* position) {
  BatchRecord* batch = BatchRecord::of(handle);
  if (batch->native != nullptr) return llama_batch_ext_set_pos(batch->native, i, position);
  if (i < 0 || static_cast<std::size_t>(i) >= batch->rows.size()) return false;
  batch->rows[static_cast<std::size_t>(i)].position = *position;
  return true;
}
std::int32_t kvspan_serve_process(llama_context* context, llama_process_type type,
                                  llama_batch_ext* handle) {
  BatchRecord* batch = BatchRecord::of(handle);
  ServedContext* served = find_served(context);
  if (served == nullptr) return llama_process(context, type, batch->native);
  if (type == LLAMA_PROCESS_TYPE_DECODE) return served->process(*batch);
  fmt::print(stderr, "kvspan: a model with an encoder and a decoder has no place in kvspan's caches\n");
  return -1;
}

// Results of the last batch, by the number that a row had in it.
float* kvspan_serve_get_logits_ith(llama_context* context, std::int32_t i) {
  return llama_get_logits_ith(context, native_row(context, i));
}
float* kvspan_serve_get_embeddings_ith(llama_context* context, std::int32_t i) {
  return llama_get_embeddings_ith(context, native_row(context, i));
}
float* kvspan_serve_get_embeddings_nextn_ith(llama_context* context, std::int32_t i) {
  return llama_get_embeddings_nextn_ith(context, native_row(context, i));
}
llama_token kvspan_serve_get_sampled_token_ith(llama_context* context, std::int32_t i) {
  return llama_get_sampled_token_ith(context, native_row(context, i));
}
float* kvspan_serve_get_sampled_probs_ith(llama_context* context, std::int32_t i) {
  return llama_get_sampled_probs_ith(context, native_row(context, i));
}
std::uint32_t kvspan_serve_get_sampled_probs_count_ith(llama_context* context, std::int32_t i) {
  return llama_get_sampled_probs_count_ith(context, native_row(context, i));
}
float* kvspan_serve_get_sampled_logits_ith(llama_context* context, std::int32_t i) {
  return llama_get_sampled_logits_ith(context, native_row(context, i));
}
std::uint32_t kvspan_serve_get_sampled_logits_count_ith(llama_context* context, std::int32_t i) {
  return llama_get_sampled_logits_count_ith(context, native_row(context, i));
}
llama_token* kvspan_serve_get_sampled_candidates_ith(llama_context* context, std::int32_t i) {
  return llama_get_sampled_candidates_ith(context, native_row(context, i));
}

// Memory: the handle of one that is kvspan's is its ServedContext.
llama_memory_t kvspan_serve_get_memory(const llama_context* context) {
  ServedContext* served = find_served(context);
  return served != nullptr ? reinterpret_cast<llama_memory_t>(served) : llama_get_memory(context);
}
void kvspan_serve_memory_clear(llama_memory_t memory, bool data) {
  ServedContext* served = find_served(memory);
  return served != nullptr ? served->clear() : llama_memory_clear(memory, data);
}
bool kvspan_serve_memory_seq_rm(llama_memory_t memory, llama_seq_id id, llama_pos from, llama_pos to) {
  ServedContext* served = find_served(memory);
  return served != nullptr ? served->remove(id, from, to) : llama_memory_seq_rm(memory, id, from, to);
}
void kvspan_serve_memory_seq_cp(llama_memory_t memory, llama_seq_id from, llama_seq_id to,
                                llama_pos first, llama_pos last) {
  ServedContext* served = find_served(memory);
  return served != nullptr ? served->copy(from, to, first, last)
                           : llama_memory_seq_cp(memory, from, to, first, last);
}
void kvspan_serve_memory_seq_add(llama_memory_t memory, llama_seq_id id, llama_pos from, llama_pos to,
                                 llama_pos by) {
  if (find_served(memory) == nullptr) return llama_memory_seq_add(memory, id, from, to, by);
  // The server has been told that positions cannot be shifted (below).
  fmt::print(stderr, "kvspan: positions of sequence {} cannot be shifted\n", id);
}
llama_pos kvspan_serve_memory_seq_pos_min(llama_memory_t memory, llama_seq_id id) {
  ServedContext* served = find_served(memory);
  return served != nullptr ? served->position_min(id) : llama_memory_seq_pos_min(memory, id);
}
llama_pos kvspan_serve_memory_seq_pos_max(llama_memory_t memory, llama_seq_id id) {
  ServedContext* served = find_served(memory);
  return served != nullptr ? served->position_max(id) : llama_memory_seq_pos_max(memory, id);
}
bool kvspan_serve_memory_can_shift(llama_memory_t memory) {
  return find_served(memory) == nullptr && llama_memory_can_shift(memory);
}

// States.
std::size_t kvspan_serve_state_seq_get_size_ext(llama_context* context, llama_seq_id id,
                                                llama_state_seq_flags flags) {
  ServedContext* served = find_served(context);
  return served != nullptr ? served->state_bytes(id) : llama_state_seq_get_size_ext(context, id, flags);
}
std::size_t kvspan_serve_state_seq_get_data_ext(llama_context* context, std::uint8_t* to,
                                                std::size_t size, llama_seq_id id,
                                                llama_state_seq_flags flags) {
  ServedContext* served = find_served(context);
  return served != nullptr ? served->take_state(id, std::span(to, size))
                           : llama_state_seq_get_data_ext(context, to, size, id, flags);
}
std::size_t kvspan_serve_state_seq_set_data_ext(llama_context* context, const std::uint8_t* from,
                                                std::size_t size, llama_seq_id id,
                                                llama_state_seq_flags flags) {
  ServedContext* served = find_served(context);
  return served != nullptr ? served->put_state(id, std::span(from, size))
                           : llama_state_seq_set_data_ext(context, from, size, id, flags);
}
std::size_t kvspan_serve_state_seq_save_file(llama_context* context, const char* path, llama_seq_id id,
                                             const llama_token* tokens, std::size_t count) {
  ServedContext* served = find_served(context);
  return served != nullptr ? served->save_file(path, id, std::span(tokens, count))
                           : llama_state_seq_save_file(context, path, id, tokens, count);
}
std::size_t kvspan_serve_state_seq_load_file(llama_context* context, const char* path, llama_seq_id id,
                                             llama_token* tokens, std::size_t capacity,
                                             std::size_t* count) {
  ServedContext* served = find_served(context);
  return served != nullptr ? served->load_file(path, id, std::span(tokens, capacity), count)
                           : llama_state_seq_load_file(context, path, id, tokens, capacity, count);
}
// Only asked for a whole context by programs with one sequence.
bool kvspan_serve_state_save_file(llama_context* context, const char* path, const llama_token* tokens,
                                  std::size_t count) {
  ServedContext* served = find_served(context);
  return served != nullptr ? served->save_file(path, 0, std::span(tokens, count)) != 0
                           : llama_state_save_file(context, path, tokens, count);
}

}  // extern "C"
