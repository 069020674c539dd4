// SPDX-License-Identifier: Apache-2.0
// Runs a model through libllama: tokens in, logits out, keys and values in caches that the caller
// owns. Every model that libllama runs, but for those whose attention is not understood, which are
// refused by name (llama/graph_probe.h).
//     KVSPAN_TRY(auto engine, Engine::load("model.gguf", {.threads = 2}));
//     KVSPAN_TRY(auto cache, make_cache(engine->cache_shape(), "full"));
//     KVSPAN_CHECK_OK(engine->prefill(*cache, prompt));
//     std::span<const float> next = engine->logits(0);
// One decode at a time; results are the same, bit for bit, for any number of threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kvspan/cache.h"
#include "llama/activation_observer.h"

struct llama_context;

namespace kvspan {

using Token = std::int32_t;

// Weights added to the model's (LoRA), from a file of their own.
struct Adapter {
  std::string path;
  float scale = 1.0f;
};

// How positions become angles, where that is not as the model's file says: libllama's context
// parameters, by which a context longer than the trained one can be used.
struct RopeOptions {
  enum class Scaling { kModel, kNone, kLinear, kYarn };
  Scaling scaling = Scaling::kModel;
  float base = 0.0f;   // 0: the model's
  float scale = 0.0f;  // of all positions; 0: the model's, or as a longer context needs it
  std::int32_t yarn_context = 0;     // 0: the trained one
  float yarn_extrapolation = -1.0f;  // negative: the model's
  float yarn_magnitude = -1.0f;
  float yarn_beta_slow = -1.0f;
  float yarn_beta_fast = -1.0f;
  bool operator==(const RopeOptions&) const = default;
};

// Whether ggml was built for CUDA, and whether there is a GPU that it was built for.
bool engine_has_cuda();
bool engine_has_gpu();

struct EngineOptions {
  int threads = 1;
  std::int32_t block = 512;     // most tokens of one pass; longer prompts are read in such blocks
  // Most of one pass, and those that a device has memory for; 8 at most where a model has recurrent
  // layers.
  std::int32_t sequences = 64;
  std::int32_t context = 0;  // tokens that a sequence may have; 0: what the model was trained for
  std::int32_t gpu_layers = 0;  // whose weights go to a GPU, where this was built for one
  std::vector<Adapter> adapters{};
  RopeOptions rope{};
  bool adapt_threads = false;  // use one while other programs need the processors
};

// What a model is, in plain numbers.
struct ModelInfo {
  std::string path;
  std::string architecture;
  std::string name;
  std::int32_t layers = 0;
  std::int32_t hidden = 0;
  std::int32_t vocabulary = 0;
  std::int32_t context = 0;  // that a sequence may have: the trained one, or as the options say
  std::int32_t trained_context = 0;
  std::int32_t query_heads = 0;
  std::int32_t kv_heads = 0;
  std::int32_t key_dim = 0;
  std::size_t file_bytes = 0;
  std::size_t weight_bytes = 0;
};

// New tokens of one sequence. They follow those its cache holds.
struct BatchPart {
  enum class Logits { kLast, kAll };
  KvCache* cache = nullptr;
  std::span<const Token> tokens;
  Logits logits = Logits::kLast;
};

// The matrix that takes a layer's attention output to the residual stream.
struct OutputProjection {
  std::vector<float> weights;  // [hidden, query_heads * value_dim]; empty where there is none
  std::vector<float> gain;     // [hidden], of a norm that follows; empty where none does
  float epsilon = 0.0f;        // of that norm
  std::vector<float> reader;   // [hidden], gain of the norm that reads the stream next, beside `gain`; empty: none
};

class Engine {
 public:
  static Result<std::unique_ptr<Engine>> load(const std::string& path,
                                              const EngineOptions& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const ModelInfo& info() const noexcept;
  const CacheShape& cache_shape() const noexcept;
  const EngineOptions& options() const noexcept;

  // Tells this model file from every other (model/fingerprint.h); some milliseconds.
  std::string fingerprint() const;
  // Empty weights where something other than one matrix follows attention (MLA). Fails for weights
  // of a type that ggml cannot turn into f32.
  Result<OutputProjection> output_projection(int layer) const;

  // One pass over at most options().block tokens in all, each sequence named at most once. On
  // failure (a token outside the vocabulary, no memory, `cancel` set) the caches hold what they
  // held before, but for methods that have packed tokens of the step: these are empty then.
  Status decode(std::span<const BatchPart> batch);
  // Rows follow the batch: one for a part that asks for its last token, as many as tokens for kAll.
  std::int32_t logit_rows() const noexcept;
  // [vocabulary]; valid until the next decode.
  std::span<const float> logits(std::int32_t row) const noexcept;

  // Reads `tokens` in blocks; afterwards logits(0) are those of the last. `progress` is called with
  // the number of tokens read so far. On failure or cancellation the blocks already read stay,
  // unless decode had to empty the cache.
  Status prefill(KvCache& cache, std::span<const Token> tokens,
                 const std::function<void(std::size_t)>& progress = nullptr);

  // The recipe with its caches in the memory of the device that computes the layers, where there is
  // one that has it, and enough memory; else as it is, and device_note() says why.
  CacheFactory place(const CacheFactory& caches) const;
  // A line on a cache that is on the host though layers are on a device; "" where nothing is to say.
  const std::string& device_note() const noexcept;

  // While *flag is true, decode stops at the next graph node and fails with kCancelled. May be
  // null.
  void set_cancel_flag(const std::atomic<bool>* flag) noexcept;

  // Shows activations to `observer`, which must outlive its use; null ends it. Of the last layer's
  // post-norm input it sees some rows only.
  void set_observer(ActivationObserver* observer);

  // Time the last decode spent in attention, cache writes included.
  double attention_seconds() const noexcept;

  // For this room, where libllama's own functions need its context, or its number of a row of
  // logits.
  llama_context* native() const noexcept;
  std::int32_t native_row(std::int32_t row) const noexcept;

  // An independent continuation of the cache, and of the state that recurrent layers keep for it.
  Result<std::unique_ptr<KvCache>> fork(const KvCache& cache);

 private:
  struct Impl;
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvspan
