// SPDX-License-Identifier: Apache-2.0
// Choosing the next token from logits: repetition penalty, top-k, top-p, min-p, temperature, then a
// seeded draw (libllama's samplers, in llama.cpp's order). Temperature 0 is greedy.
#pragma once

#include <memory>
#include <span>

#include "llama/engine.h"

namespace kvspan {

struct SamplerOptions {
  float temperature = 0.8f;  // 0: the most likely token
  std::int32_t top_k = 40;   // 0: all
  float top_p = 0.95f;       // 1: all
  float min_p = 0.05f;       // 0: all
  float repeat_penalty = 1.0f;
  std::int32_t repeat_window = 64;
  std::uint32_t seed = 0;
};

class Sampler {
 public:
  // Fails, naming the option and what is allowed.
  static Result<std::unique_ptr<Sampler>> make(const SamplerOptions& options,
                                               std::int32_t vocabulary);
  ~Sampler();

  // The next token, which from now on counts for the repetition penalty.
  Token sample(std::span<const float> logits);
  // Counts a token that was not sampled here (the prompt's).
  void accept(Token token);

 private:
  struct Impl;
  explicit Sampler(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvspan
