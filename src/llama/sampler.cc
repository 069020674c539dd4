// SPDX-License-Identifier: Apache-2.0
#include "llama/sampler.h"

#include <llama.h>

#include <vector>

#include "base/fail.h"

namespace kvspan {
namespace {

struct FreeSampler {
  void operator()(llama_sampler* sampler) const { llama_sampler_free(sampler); }
};

Status check(const SamplerOptions& o) {
  const auto refuse = [](const char* name, auto value, const char* allowed) {
    return fail(ErrorCode::kInvalidArgument, "{} is {}; allowed: {}", name, value, allowed);
  };
  // Written so that NaN is refused too.
  if (!(o.temperature >= 0.0f && o.temperature <= 100.0f)) {
    return refuse("temperature", o.temperature, "0 (greedy) to 100");
  }
  if (o.top_k < 0) return refuse("top-k", o.top_k, "0 (all) or more");
  if (!(o.top_p > 0.0f && o.top_p <= 1.0f))
    return refuse("top-p", o.top_p, "above 0, up to 1 (all)");
  if (!(o.min_p >= 0.0f && o.min_p <= 1.0f)) return refuse("min-p", o.min_p, "0 (all) to 1");
  if (!(o.repeat_penalty > 0.0f && o.repeat_penalty <= 100.0f)) {
    return refuse("repeat-penalty", o.repeat_penalty, "above 0, up to 100 (1: none)");
  }
  return {};
}

}  // namespace

struct Sampler::Impl {
  std::unique_ptr<llama_sampler, FreeSampler> chain;
  std::vector<llama_token_data> candidates;
};

Sampler::Sampler(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Sampler::~Sampler() = default;

Result<std::unique_ptr<Sampler>> Sampler::make(const SamplerOptions& options,
                                               std::int32_t vocabulary) {
  KVSPAN_CHECK_OK(check(options));
  auto impl = std::make_unique<Impl>();
  llama_sampler* chain = llama_sampler_chain_init(llama_sampler_chain_default_params());
  impl->chain.reset(chain);
  if (options.repeat_penalty != 1.0f) {
    llama_sampler_chain_add(chain,
                            llama_sampler_init_penalties(vocabulary, options.repeat_window,
                                                         options.repeat_penalty, 0.0f, 0.0f));
  }
  if (options.temperature == 0.0f) {
    llama_sampler_chain_add(chain, llama_sampler_init_greedy());
  } else {
    if (options.top_k > 0) llama_sampler_chain_add(chain, llama_sampler_init_top_k(options.top_k));
    llama_sampler_chain_add(chain, llama_sampler_init_top_p(options.top_p, 1));
    llama_sampler_chain_add(chain, llama_sampler_init_min_p(options.min_p, 1));
    llama_sampler_chain_add(chain, llama_sampler_init_temp(options.temperature));
    llama_sampler_chain_add(chain, llama_sampler_init_dist(options.seed));
  }
  return std::unique_ptr<Sampler>(new Sampler(std::move(impl)));
}

Token Sampler::sample(std::span<const float> logits) {
  auto& candidates = impl_->candidates;
  candidates.resize(logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i) {
    candidates[i] = {static_cast<llama_token>(i), logits[i], 0.0f};
  }
  llama_token_data_array array{candidates.data(), candidates.size(), -1, false};
  llama_sampler_apply(impl_->chain.get(), &array);
  const Token token = array.data[array.selected].id;
  accept(token);
  return token;
}

void Sampler::accept(Token token) {
  llama_sampler_accept(impl_->chain.get(), token);
}

}  // namespace kvspan
