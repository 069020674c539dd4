// SPDX-License-Identifier: Apache-2.0
// kvspan's caches under any program that runs models with libllama. In place of
//     llama_context* context = llama_init_from_model(model, params);
//     llama_decode(context, batch);
// it says
//     auto caches = kvspan::LlamaCaches::create(model, params, {.recipe = "full"});
//     llama_context* context = (*caches)->context();
//     (*caches)->decode(batch);
// and keeps the rest: batches, logits, samplers, grammars, adapters. libllama itself is not
// changed; of libllama's functions those that act on a context's memory or state (llama_decode,
// llama_memory_*, llama_state_*) are not to be called for this context: their counterparts are
// here. examples/llama_chat is a complete chat.
//
// Where a model's layers keep a recurrent state beside attention (Jamba, Qwen3-Next, LFM2, ...),
// that state stays in libllama's memory: such sequences can be cleared and forked, not truncated or
// saved.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kvspan/cache.h"
#include "kvspan/calibration.h"
#include "kvspan/saved_cache.h"

struct llama_model;
struct llama_context;
struct llama_context_params;
struct llama_batch;

namespace kvspan {

struct LlamaOptions {
  std::string recipe = "full";
  const Calibration* calibration = nullptr;  // where the recipe needs one; not kept
  std::string model_path;  // for models with long RoPE factors (Phi 3), which are read from there
};

// Upper bounds of the error of attention over coded rows (certificates, with certify=on), for a
// sample of the queries: each sample has the largest bounds of one KV head.
struct CertificateFigures {
  struct Bound {
    double last = 0.0, sum = 0.0, most = 0.0;
  };
  std::uint64_t samples = 0;
  std::int32_t layer = 0, kv_head = 0, tokens = 0;  // of the last
  Bound logits;          // of |l - l^|, any token
  Bound weights;         // of |a - a^|_1
  Bound output;          // of |o - o^|_2
  double seconds = 0.0;  // that they took
};

// One thread at a time.
class LlamaCaches {
 public:
  // n_ctx is the length that sequences may grow to, and n_seq_max how many there may be; threads,
  // batch sizes, RoPE and the abort callback are as for any context. cb_eval is kvspan's; other
  // parameters of KV memory (types, flash attention, unified) are ignored. The model must outlive this.
  // kUnsupported, with the reason, for a model whose attention is not understood.
  static Result<std::unique_ptr<LlamaCaches>> create(llama_model* model,
                                                     const llama_context_params& params,
                                                     const LlamaOptions& options);
  ~LlamaCaches();

  llama_context* context() const noexcept;
  const CacheShape& shape() const noexcept;
  const std::string& recipe() const noexcept;
  // Where the model's layers are on a CUDA device, and kvspan was built for it, so are the caches of
  // recipes that the device has (kvspan/cuda.h): such sequences cannot be truncated to what has
  // been coded. Where they are not, the note says why; else it is "".
  bool on_device() const noexcept;
  const std::string& device_note() const noexcept;
  // What its sequences are made from.
  const CacheFactory& factory() const noexcept;

  // Reads a batch, as llama_decode does. Tokens of a sequence follow each other in it, at the
  // positions after those that the sequence has; a token belongs to one sequence. On failure, also
  // when the abort callback ends it (kCancelled), sequences have the tokens that they had before, and
  // the next decode goes on from there; rows that the batch pushed out of the recent window may be
  // encoded already. For recipes and models that cannot go back the sequences of the batch are empty.
  Status decode(const llama_batch& batch);

  // Tokens that a sequence has had: its next position. 0 for a new one.
  std::int32_t tokens(std::int32_t sequence) const noexcept;
  // The smallest n that truncate() can go back to, besides 0.
  std::int32_t least_tokens(std::int32_t sequence) const noexcept;
  // Forgets every token at position >= n.
  Status truncate(std::int32_t sequence, std::int32_t n);
  void clear(std::int32_t sequence);
  void clear();
  // Sequence `to` becomes an independent continuation of `from`; memory is shared until written.
  Status fork(std::int32_t from, std::int32_t to);

  // Of all sequences, and of one.
  CacheBytes bytes() const;
  CacheBytes bytes(std::int32_t sequence) const;
  // [layers], what bytes().total is made of.
  std::vector<std::size_t> layer_bytes() const;

  // Samples certificates, for this share of the decoding time; 0, the default: none.
  // Returns whether the recipe has certificates (certify=on); without them nothing is sampled.
  bool sample_certificates(double share);
  const CertificateFigures& certificates() const noexcept;
  // A sequence as bytes, and back (docs/reference/formats/cache.md).
  Result<std::vector<std::byte>> save(std::int32_t sequence) const;
  Result<SavedCache> save_with_runs(std::int32_t sequence) const;
  Status load(std::int32_t sequence, std::span<const std::byte> bytes);
  // The sequence becomes this cache, which one of the same recipe, shape and codes made; one in the
  // host's memory is brought to where the others are. Where that fails the sequence is as before.
  Status take(std::int32_t sequence, std::unique_ptr<KvCache> cache);

 private:
  struct Impl;
  explicit LlamaCaches(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvspan
