// SPDX-License-Identifier: Apache-2.0
#include "cli/chat/answer_flags.h"

#include <charconv>
#include <limits>
#include <random>

#include "base/fail.h"
#include "cli/terminal/text_input.h"
#include "io/atomic_file.h"

namespace kvspan::cli {
namespace {

constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();
constexpr std::size_t kTextBytes = std::size_t{16} << 20;  // of a grammar, schema or template

// The text of the file that a flag names.
Result<std::string> text_of_file(const char* flag, const std::string& path) {
  const auto bytes = read_file(path, kTextBytes);
  if (!bytes) return fail(ErrorCode::kInvalidArgument, "{}: {}", flag, bytes.error().message);
  std::string text(reinterpret_cast<const char*>(bytes->data()), bytes->size());
  if (text.empty()) return fail(ErrorCode::kInvalidArgument, "{}: '{}' is empty", flag, path);
  KVSPAN_CHECK_OK(check_text(text, fmt::format("{}: '{}'", flag, path)));
  return text;
}

// All of `text` as a number.
template <class T>
bool parse_number(std::string_view text, T& number) {
  const char* end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && stopped == end;
}

// "15043+1", "15043-inf"
Result<LogitBias> parse_logit_bias(const std::string& text) {
  LogitBias bias;
  const std::size_t sign = text.find_first_of("+-", 1);
  if (sign != std::string::npos &&
      parse_number(std::string_view(text).substr(0, sign), bias.token) &&
      parse_number(std::string_view(text).substr(sign + 1), bias.bias) && bias.bias >= 0.0f) {
    if (text[sign] == '-') bias.bias = -bias.bias;
    return bias;
  }
  return fail(ErrorCode::kInvalidArgument,
              "--logit-bias: '{}' is not allowed; allowed: a token and what is added to its logit, "
              "as 15043+1 or 15043-inf",
              text);
}

// "adapter.gguf:0.5"
Result<Adapter> parse_scaled_adapter(const std::string& text) {
  Adapter adapter;
  const std::size_t colon = text.rfind(':');
  if (colon != std::string::npos && colon > 0 &&
      parse_number(std::string_view(text).substr(colon + 1), adapter.scale) &&
      adapter.scale >= -1000.0f && adapter.scale <= 1000.0f) {
    adapter.path = text.substr(0, colon);
    return adapter;
  }
  return fail(
      ErrorCode::kInvalidArgument,
      "--lora-scaled: '{}' is not allowed; allowed: FILE:SCALE, the scale from -1000 to 1000",
      text);
}

void add_penalty_flags(CLI::App& app, SamplerOptions& o) {
  add_real(app, "--repeat-penalty", o.repeat_penalty, "Penalty of tokens that repeat", 0.01f,
           100.0f, "1: none");
  add_real(app, "--presence-penalty", o.presence_penalty,
           "Taken from the logit of a repeated token", -100.0f, 100.0f, "0: none");
  add_real(app, "--frequency-penalty", o.frequency_penalty,
           "Taken from the logit of a token each time it was there", -100.0f, 100.0f, "0: none");
  add_integer(app, "--repeat-last-n", o.repeat_window, "Tokens looked back on for repetitions", 1,
              kMost);
  add_real(app, "--dry-multiplier", o.dry_multiplier,
           "Penalty of a token that would go on with a repetition (DRY)", 0.0f, 100.0f, "0: none");
  add_real(app, "--dry-base", o.dry_base, "Growth of that penalty with each token repeated", 1.0f,
           100.0f);
  add_integer(app, "--dry-allowed-length", o.dry_allowed_length,
              "Tokens that may repeat before that penalty", 0, kMost);
  add_integer(app, "--dry-penalty-last-n", o.dry_window, "Tokens that DRY looks back on", 0, kMost,
              "0: none");
}

void add_draw_flags(CLI::App& app, SamplerOptions& o) {
  add_real(app, "--temp,--temperature", o.temperature, "Temperature", 0.0f, 100.0f,
           "0: always the most likely token");
  add_integer(app, "--top-k", o.top_k, "Draw from the k most likely tokens", 0, kMost, "0: all");
  add_real(app, "--top-p", o.top_p, "Draw from the most likely tokens that sum to p", 0.001f, 1.0f,
           "1: all");
  add_real(app, "--min-p", o.min_p, "Leave out tokens below p times the most likely", 0.0f, 1.0f,
           "0: none");
  add_real(app, "--typical,--typical-p", o.typical,
           "Draw from the tokens nearest to the expected surprise that sum to p", 0.001f, 1.0f,
           "1: all");
  add_real(app, "--xtc-probability", o.xtc_probability,
           "How often the most likely tokens are left out but for the last (XTC)", 0.0f, 1.0f,
           "0: never");
  add_real(app, "--xtc-threshold", o.xtc_threshold, "Probability from which XTC leaves tokens out",
           0.0f, 1.0f);
  add_integer(app, "--mirostat", o.mirostat, "Version of Mirostat, in place of all these", 0, 2,
              "0: none");
  add_real(app, "--mirostat-lr", o.mirostat_rate, "Learning rate of Mirostat", 0.0f, 100.0f);
  add_real(app, "--mirostat-ent", o.mirostat_entropy, "Target entropy of Mirostat", 0.0f, 100.0f);
}

void add_grammar_flags(CLI::App& app, SamplingFlags& flags) {
  const std::string names[] = {"--grammar", "--grammar-file", "--json-schema",
                               "--json-schema-file"};
  add_text(app, names[0], flags.options.grammar, "Grammar (GBNF) that an answer follows", "TEXT");
  add_text(app, names[1], flags.grammar_file, "A file with the grammar", "FILE");
  add_text(app, "-j,--json-schema", flags.options.json_schema, "JSON schema that an answer fits",
           "TEXT");
  add_text(app, names[3], flags.json_schema_file, "A file with the JSON schema", "FILE");
  for (int one = 0; one < 4; ++one) {
    for (int other = 0; other < one; ++other) exclude_each_other(app, names[one], names[other]);
  }
}

}  // namespace

void add_sampling_flags(CLI::App& app, SamplingFlags& flags) {
  add_integer(app, "-n,--predict,--n-predict", flags.max_tokens, "Most tokens of an answer", -1,
              std::int64_t{kMost}, "-1: until the context is full");
  add_integer(app, "-s,--seed", flags.seed, "Seed of the random draw", -1,
              std::numeric_limits<std::uint32_t>::max() - std::int64_t{1},
              "-1: another one each time");
  add_draw_flags(app, flags.options);
  add_penalty_flags(app, flags.options);
  add_repeated(app, "-l,--logit-bias", flags.logit_bias,
               "Add to a token's logit, as 15043+1 or 15043-inf (may be given repeatedly)",
               "TOKEN(+/-)BIAS");
  add_switch(app, "--ignore-eos", flags.options.ignore_end,
             "Never choose a token that ends the answer");
  add_grammar_flags(app, flags);
  add_switch(app, "--no-context-shift", flags.no_shift,
             "End where the context is full, instead of forgetting the oldest turns, or the middle "
             "of a text");
  add_repeated(app, "--stop", flags.stop,
               "End the answer before this text (may be given repeatedly)", "TEXT");
}

Result<SamplerOptions> SamplingFlags::sampler() const {
  SamplerOptions made = options;
  made.seed = seed < 0 ? std::random_device()() : static_cast<std::uint32_t>(seed);
  for (const std::string& text : logit_bias) {
    KVSPAN_TRY(const LogitBias bias, parse_logit_bias(text));
    made.logit_bias.push_back(bias);
  }
  if (!grammar_file.empty()) {
    KVSPAN_TRY(made.grammar, text_of_file("--grammar-file", grammar_file));
  }
  if (!json_schema_file.empty()) {
    KVSPAN_TRY(made.json_schema, text_of_file("--json-schema-file", json_schema_file));
  }
  return made;
}

std::int32_t SamplingFlags::token_limit() const {
  return max_tokens < 0 ? kMost : static_cast<std::int32_t>(max_tokens);
}

Result<std::unique_ptr<Sampler>> make_sampler(const SamplerOptions& options, const Engine& engine) {
  auto sampler = Sampler::make(options, engine);
  // Its errors begin with the option's name, which is the flag's.
  if (!sampler) return fail(sampler.error().code, "--{}", sampler.error().message);
  return sampler;
}

void add_companion_flags(CLI::App& app, CompanionFlags& flags) {
  add_llama_flags(app, flags.llama);
  add_repeated(app, "--lora", flags.lora, "LoRA adapter of the model (may be given repeatedly)",
               "FILE");
  add_repeated(app, "--lora-scaled", flags.lora_scaled,
               "LoRA adapter and how much of it counts (may be given repeatedly)", "FILE:SCALE");
  add_text(app, "--chat-template", flags.chat_template,
           "Jinja template, or name of one that llama.cpp knows, in place of the model's own",
           "TEMPLATE");
  add_text(app, "--chat-template-file", flags.chat_template_file, "A file with the template",
           "FILE");
  exclude_each_other(app, "--chat-template", "--chat-template-file");
  add_text(app, "--draft-model,--model-draft", flags.draft_model,
           "Smaller model of the same vocabulary that guesses tokens ahead (speculative decoding)",
           "MODEL");
  add_integer(app, "--draft,--draft-max", flags.draft, "Tokens that it guesses at a time", 1, 128);
  add_switch(
      app, "--fixed-threads", flags.fixed_threads,
      "Use all threads also while other programs need the processors; without it one is used then");
}

Result<std::vector<Adapter>> CompanionFlags::adapters() const {
  std::vector<Adapter> all;
  for (const std::string& path : lora) all.push_back({path, 1.0f});
  for (const std::string& text : lora_scaled) {
    KVSPAN_TRY(Adapter adapter, parse_scaled_adapter(text));
    all.push_back(std::move(adapter));
  }
  return all;
}

Result<std::string> CompanionFlags::template_text() const {
  if (chat_template_file.empty()) return chat_template;
  return text_of_file("--chat-template-file", chat_template_file);
}

}  // namespace kvspan::cli
