// SPDX-License-Identifier: Apache-2.0
#include "llama/sampler.h"

#include <sampling.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/fail.h"
#include "llama/ggml_log.h"
#include "llama/grammar.h"

namespace kvspan {
namespace {

constexpr float kSmallest = std::numeric_limits<float>::min();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

Status check(const SamplerOptions& o, std::int32_t vocabulary) {
  struct Range {
    const char* name;
    float value, low, high;
    const char* allowed;
  };
  const Range ranges[] = {
      {"temperature", o.temperature, 0, 100, "0 (greedy) to 100"},
      {"top-k", static_cast<float>(o.top_k), 0, kInfinity, "0 (all) or more"},
      {"top-p", o.top_p, kSmallest, 1, "above 0, up to 1 (all)"},
      {"min-p", o.min_p, 0, 1, "0 (all) to 1"},
      {"typical", o.typical, kSmallest, 1, "above 0, up to 1 (all)"},
      {"xtc-probability", o.xtc_probability, 0, 1, "0 (never) to 1"},
      {"xtc-threshold", o.xtc_threshold, 0, 1, "0 to 1"},
      {"repeat-penalty", o.repeat_penalty, 1e-30f, 100, "above 0, up to 100 (1: none)"},
      {"presence-penalty", o.presence_penalty, -100, 100, "-100 to 100 (0: none)"},
      {"frequency-penalty", o.frequency_penalty, -100, 100, "-100 to 100 (0: none)"},
      {"repeat-last-n", static_cast<float>(o.repeat_window), 0, kInfinity, "0 (none) or more"},
      {"dry-multiplier", o.dry_multiplier, 0, 100, "0 (none) to 100"},
      {"dry-base", o.dry_base, 1, 100, "1 to 100"},
      {"dry-allowed-length", static_cast<float>(o.dry_allowed_length), 0, kInfinity, "0 or more"},
      {"dry-penalty-last-n", static_cast<float>(o.dry_window), 0, kInfinity, "0 (none) or more"},
      {"mirostat", static_cast<float>(o.mirostat), 0, 2, "0 (none), 1 or 2"},
      {"mirostat-lr", o.mirostat_rate, 0, 100, "0 to 100"},
      {"mirostat-ent", o.mirostat_entropy, 0, 100, "0 to 100"},
  };
  for (const Range& range : ranges) {
    // Written so that NaN is refused too.
    if (range.value >= range.low && range.value <= range.high) continue;
    return fail(ErrorCode::kInvalidArgument, "{} is {}; allowed: {}", range.name, range.value,
                range.allowed);
  }
  for (const auto& [token, bias] : o.logit_bias) {
    if (token >= 0 && token < vocabulary && !std::isnan(bias)) continue;
    return fail(ErrorCode::kInvalidArgument,
                "logit-bias is {} for token {}; allowed: a number for a token from 0 to {}", bias,
                token, vocabulary - 1);
  }
  if (!o.grammar.empty() && !o.json_schema.empty()) {
    return fail(ErrorCode::kInvalidArgument, "grammar and json-schema; allowed: one of them");
  }
  return {};
}

common_params_sampling parameters(const SamplerOptions& o, std::int32_t context) {
  common_params_sampling p;
  // Greedy is a draw from the most likely token, whatever would choose among several.
  const bool greedy = o.temperature == 0.0f;
  p.temp = greedy ? 1.0f : o.temperature;
  p.top_k = greedy ? 1 : o.top_k;
  p.mirostat = greedy ? 0 : o.mirostat;
  p.top_p = o.top_p;
  p.min_p = o.min_p;
  p.typ_p = o.typical;
  p.xtc_probability = o.xtc_probability;
  p.xtc_threshold = o.xtc_threshold;
  p.penalty_repeat = o.repeat_penalty;
  p.penalty_present = o.presence_penalty;
  p.penalty_freq = o.frequency_penalty;
  // libllama makes room for the whole window, however few tokens there can be.
  p.penalty_last_n = std::min(o.repeat_window, context);
  p.dry_multiplier = o.dry_multiplier;
  p.dry_base = o.dry_base;
  p.dry_allowed_length = o.dry_allowed_length;
  p.dry_penalty_last_n = std::min(o.dry_window, context);
  p.mirostat_eta = o.mirostat_rate;
  p.mirostat_tau = o.mirostat_entropy;
  for (const auto& [token, bias] : o.logit_bias) p.logit_bias.push_back({token, bias});
  p.no_perf = true;
  return p;
}

}  // namespace

struct Sampler::Impl {
  const llama_model* model = nullptr;
  common_params_sampling parameters;
  std::uint32_t seed = 0;
  std::uint32_t answers = 0;
  common_sampler_ptr sampler;

  void begin() {
    // LLAMA_DEFAULT_SEED means a seed by the clock.
    parameters.seed = (seed + answers++) % LLAMA_DEFAULT_SEED;
    sampler.reset(common_sampler_init(model, parameters));
  }
};

Sampler::Sampler(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Sampler::~Sampler() = default;

Result<std::unique_ptr<Sampler>> Sampler::make(const SamplerOptions& options,
                                               const Engine& engine) {
  silence_ggml();
  KVSPAN_CHECK_OK(check(options, engine.info().vocabulary));
  auto impl = std::make_unique<Impl>();
  impl->model = llama_get_model(engine.native());
  impl->seed = options.seed;
  impl->parameters = parameters(options, engine.info().context);
  const llama_vocab* vocabulary = llama_model_get_vocab(impl->model);
  for (Token token = 0; options.ignore_end && token < engine.info().vocabulary; ++token) {
    if (llama_vocab_is_eog(vocabulary, token)) {
      impl->parameters.logit_bias.push_back({token, -kInfinity});
    }
  }
  std::string grammar = options.grammar;
  if (!options.json_schema.empty()) {
    KVSPAN_TRY(grammar, grammar_of_schema(options.json_schema));
  }
  if (!grammar.empty()) {
    KVSPAN_CHECK_OK(check_grammar(vocabulary, grammar));
    impl->parameters.grammar = {COMMON_GRAMMAR_TYPE_USER, std::move(grammar)};
  }
  impl->begin();
  impl->answers = 0;  // none was given yet
  return std::unique_ptr<Sampler>(new Sampler(std::move(impl)));
}

void Sampler::start(std::span<const Token> prompt) {
  impl_->begin();
  const auto window = static_cast<std::size_t>(
      std::max(impl_->parameters.penalty_last_n, impl_->parameters.dry_penalty_last_n));
  for (const Token token : prompt.last(std::min(window, prompt.size()))) {
    common_sampler_accept(impl_->sampler.get(), token, /*is_generated=*/false);
  }
}

Result<Token> Sampler::sample(const Engine& engine, std::int32_t row) {
  common_sampler* sampler = impl_->sampler.get();
  try {
    const Token token = common_sampler_sample(sampler, engine.native(), engine.native_row(row));
    // Where nothing is possible libllama draws all the same, and its grammars end the process when
    // told of a token that they do not allow.
    const llama_token_data_array* left = common_sampler_get_candidates(sampler, false);
    if (left->data[left->selected].logit == -kInfinity) {
      return fail(ErrorCode::kUnsupported, "grammar and biases leave no token to go on with");
    }
    common_sampler_accept(sampler, token, /*is_generated=*/true);
    return token;
  } catch (const std::runtime_error& error) {
    return fail(ErrorCode::kUnsupported, "the grammar cannot go on: {}", error.what());
  }
}

}  // namespace kvspan
