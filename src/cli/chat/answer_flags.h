// SPDX-License-Identifier: Apache-2.0
// Flags of the commands that answer (run, chat): how tokens are chosen, and what a model is used
// with. Named as llama.cpp names them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cli/chat/llama_flags.h"
#include "cli/flags.h"
#include "llama/sampler.h"

namespace kvspan::cli {

struct SamplingFlags {
  SamplerOptions options;  // but for what the texts below become
  std::int64_t max_tokens = 512;
  std::int64_t seed = 0;
  std::vector<std::string> logit_bias;
  std::string grammar_file;
  std::string json_schema_file;
  std::vector<std::string> stop;
  bool no_shift = false;  // a full context is the end

  // Reads the files; seed -1 becomes a seed from the system. Fails, naming the flag, its value and
  // what is allowed.
  Result<SamplerOptions> sampler() const;
  std::int32_t token_limit() const;
  // Whether an answer goes on where the context is full: not with -n -1, which asks for that much.
  bool shifts() const { return !no_shift && max_tokens >= 0; }
};
void add_sampling_flags(CLI::App& app, SamplingFlags& flags);
// Sampler::make, an error naming the flag.
Result<std::unique_ptr<Sampler>> make_sampler(const SamplerOptions& options, const Engine& engine);

// What a model is used with, beside its cache.
struct CompanionFlags {
  std::vector<std::string> lora;
  std::vector<std::string> lora_scaled;
  std::string chat_template;
  std::string chat_template_file;
  std::string draft_model;  // name or path; "": none
  std::int64_t draft = 3;   // tokens that it guesses at a time
  bool fixed_threads = false;
  LlamaFlags llama;

  Result<std::vector<Adapter>> adapters() const;
  // The text or name; "": the model's own.
  Result<std::string> template_text() const;
};
void add_companion_flags(CLI::App& app, CompanionFlags& flags);

}  // namespace kvspan::cli
