// SPDX-License-Identifier: Apache-2.0
// Choosing the next token: llama.cpp's samplers, in its order (penalties, DRY, top-k, typical,
// top-p, min-p, XTC, temperature, a seeded draw), held to a grammar where there is one.
// Temperature 0 is greedy: the most likely token that penalties, biases and grammar leave.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "llama/engine.h"

namespace kvspan {

struct LogitBias {
  Token token = 0;
  float bias = 0.0f;  // added to its logit; -infinity: never
};

struct SamplerOptions {
  float temperature = 0.8f;      // 0: the most likely token
  std::int32_t top_k = 40;       // 0: all
  float top_p = 0.95f;           // 1: all
  float min_p = 0.05f;           // 0: all
  float typical = 1.0f;          // 1: all
  float xtc_probability = 0.0f;  // of leaving out the most likely; 0: never
  float xtc_threshold = 0.1f;    // tokens above it are the most likely
  float repeat_penalty = 1.0f;
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  std::int32_t repeat_window = 64;  // tokens that these three look back on
  float dry_multiplier = 0.0f;      // 0: no DRY
  float dry_base = 1.75f;
  std::int32_t dry_allowed_length = 2;
  std::int32_t dry_window = 64;
  std::int32_t mirostat = 0;  // 1 or 2: this version, in place of all but the penalties
  float mirostat_rate = 0.1f;
  float mirostat_entropy = 5.0f;
  std::vector<LogitBias> logit_bias{};
  bool ignore_end = false;    // tokens that end an answer are never chosen
  std::string grammar{};      // GBNF; "": none
  std::string json_schema{};  // in place of a grammar
  std::uint32_t seed = 0;
};

class Sampler {
 public:
  // Fails, its text beginning with the option's name and saying what is allowed. Of the engine it
  // needs the vocabulary, which must outlive it.
  static Result<std::unique_ptr<Sampler>> make(const SamplerOptions& options, const Engine& engine);
  ~Sampler();

  // Begins an answer to `prompt`, which counts for the penalties: the grammar begins again, and
  // answers after the first are other draws.
  void start(std::span<const Token> prompt);
  // The next token by a row of the engine's last decode; it belongs to the answer from now on.
  // Fails when grammar and biases leave none.
  Result<Token> sample(const Engine& engine, std::int32_t row);

 private:
  struct Impl;
  explicit Sampler(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvspan
