// SPDX-License-Identifier: Apache-2.0
// llama.cpp as it comes: its own KV cache, its own samplers, nothing of kvspan. Tests hold answers
// at temperature 0 against it.
#pragma once

#include <llama.h>
#include <sampling.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "llama/engine.h"

namespace kvspan::testing {

struct StockOptions {
  common_grammar grammar{};
  std::string adapter{};  // path of a LoRA adapter
  std::function<void(llama_context_params&)> adjust{};
};

// The first `count` tokens of the answer to `prompt`, the end token included; empty on failure.
inline std::vector<Token> stock_answer(const std::string& path, std::vector<Token> prompt,
                                       int count, const StockOptions& options = {}) {
  const std::unique_ptr<llama_model, void (*)(llama_model*)> model(
      llama_model_load_from_file(path.c_str(), llama_model_default_params()), llama_model_free);
  if (!model) return {};
  llama_context_params params = llama_context_default_params();
  params.n_ctx = 512;
  params.n_threads = params.n_threads_batch = 1;
  if (options.adjust) options.adjust(params);
  const std::unique_ptr<llama_context, void (*)(llama_context*)> context(
      llama_init_from_model(model.get(), params), llama_free);
  if (!options.adapter.empty()) {
    llama_adapter_lora* adapter = llama_adapter_lora_init(model.get(), options.adapter.c_str());
    float scale = 1.0f;
    if (adapter == nullptr || llama_set_adapters_lora(context.get(), &adapter, 1, &scale) != 0) {
      return {};
    }
  }
  common_params_sampling sampling;
  sampling.temp = 0.0f;
  sampling.grammar = options.grammar;
  const common_sampler_ptr sampler(common_sampler_init(model.get(), sampling));
  llama_batch batch = llama_batch_get_one(prompt.data(), static_cast<std::int32_t>(prompt.size()));
  std::vector<Token> answer;
  while (llama_decode(context.get(), batch) == 0) {
    answer.push_back(common_sampler_sample(sampler.get(), context.get(), -1));
    common_sampler_accept(sampler.get(), answer.back(), true);
    if (static_cast<int>(answer.size()) == count ||
        llama_vocab_is_eog(llama_model_get_vocab(model.get()), answer.back())) {
      return answer;
    }
    batch = llama_batch_get_one(&answer.back(), 1);
  }
  return {};
}

}  // namespace kvspan::testing
