// SPDX-License-Identifier: Apache-2.0
// A llama_context whose attention is answered by kvspan's caches, which the caller owns. libllama's
// own KV memory is as long as one batch, is neither written nor read, and is empty between decodes;
// states of recurrent layers stay in it, by sequence.
#pragma once

#include <llama-cpp.h>

#include <memory>
#include <span>
#include <string>

#include "llama/attention_hook.h"

namespace kvspan {

class HookedContext {
 public:
  struct Options {
    std::string model_path;  // where long RoPE factors are read from, for models that have them
    bool overwrite = false;  // AttentionHook::set_overwrite
    // Answers nodes in place of the one that fits the model's layers: for tests.
    std::shared_ptr<DeviceAnswer> device{};
  };
  // n_ctx is the context that sequences may grow to. n_batch, n_ubatch, n_seq_max, threads, RoPE
  // and the abort callback are as for any context; what concerns libllama's KV memory is not looked
  // at. The model outlives the context. kUnsupported, with the reason, for a model that is not
  // understood.
  static Result<std::unique_ptr<HookedContext>> create(llama_model* model,
                                                       const llama_context_params& params,
                                                       const Options& options);
  ~HookedContext();

  llama_context* get() const noexcept { return context_.get(); }
  const CacheShape& shape() const noexcept { return hook_.model().shape; }
  const ProbedModel& model() const noexcept { return hook_.model(); }
  // Whether layers keep a state beside the cache, which decode() leaves in libllama's memory.
  bool recurrent() const noexcept { return hook_.model().recurrent; }
  std::uint32_t context_length() const noexcept { return context_length_; }

  // The recipe with caches for so many sequences where the layers are computed, if that is a device
  // that has it, and memory for it; else as it is.
  struct Placed {
    CacheFactory caches;
    bool on_device = false;
    std::string note;  // why they are on the host although layers are on a device; else empty
  };
  Placed place(const CacheFactory& caches, std::int32_t sequences);

  // llama_decode. rows: one for each token of the batch, with the sequence it belongs to. After a
  // failure layers of the caches may hold different tokens.
  Status decode(const llama_batch& batch, std::span<const BatchRow> rows);

  void set_observer(ActivationObserver* observer) noexcept { hook_.set_observer(observer); }
  CertificateSamples& certificates() noexcept { return hook_.work.certificates; }
  const CertificateSamples& certificates() const noexcept { return hook_.work.certificates; }
  double attention_seconds() const noexcept { return hook_.work.seconds; }

 private:
  HookedContext() = default;
  Status open(llama_model* model, llama_context_params params, const Options& options);
  void forget(std::span<const BatchRow> rows);

  AttentionHook hook_;
  llama_context_ptr context_;  // refers to the hook
  std::uint32_t context_length_ = 0;
  std::string no_device_;  // why layers on a device have no caches there; empty: they can
};

}  // namespace kvspan
