// SPDX-License-Identifier: Apache-2.0
// kvspan verify: the engine's logits against llama.cpp's on a text.
#include "base/fail.h"
#include "cli/command.h"
#include "cli/commands/verify_archs.h"
#include "cli/flags.h"
#include "cli/measured_text.h"
#include "cli/model_path.h"
#include "cli/output/json_output.h"
#include "cli/output/progress_bar.h"
#include "cli/output/table.h"
#include "cli/temporary_model.h"
#include "cli/terminal/interrupt.h"
#include "eval/verify/verify.h"

namespace kvspan::cli {
namespace {

struct VerifyFlags {
  ModelFlags model;
  std::string file;
  std::string weights = "file";
  std::string json;
  std::int64_t tokens = 8000;
  std::int64_t compared = 2000;
  ArchsFlags archs;
};

Json to_json(const Verification& row) {
  return Json{{"name", row.name},     {"compared", row.compared},     {"kl_mean", row.kl_mean},
              {"kl_max", row.kl_max}, {"kl_decoded", row.kl_decoded}, {"top1", row.top1}};
}

Result<std::vector<Verification>> compare(const VerifyFlags& flags, const std::string& path,
                                          std::span<const Token> tokens) {
  const auto threads = static_cast<int>(flags.model.threads);
  KVSPAN_TRY(const auto engine, Engine::load(path, {threads, 512}));
  engine->set_cancel_flag(&interrupted());
  const auto peer = [&](const char* kv_type, bool flash) -> Result<std::unique_ptr<LogitSource>> {
    PeerOptions options;
    options.threads = threads;
    options.context = static_cast<std::int32_t>((tokens.size() + 255) / 256 * 256);
    options.kv_type = kv_type;
    options.flash_attention = flash;
    KVSPAN_TRY(auto loaded, PeerLlama::load(path, options));
    return peer_logits(std::move(loaded), options);
  };
  KVSPAN_TRY(const auto reference, peer("f32", false));
  std::vector<std::unique_ptr<LogitSource>> subjects;
  KVSPAN_TRY(auto kvspan, engine_logits(*engine, flags.model.recipe));
  KVSPAN_TRY(auto flash, peer("f16", true));
  subjects.push_back(std::move(kvspan));
  subjects.push_back(std::move(flash));
  ProgressBar bar("comparing", "tokens", tokens.size());
  VerifyOptions options;
  options.compared = static_cast<std::size_t>(flags.compared);
  return verify_logits(*reference, subjects, tokens, options,
                       [&](std::size_t done) { bar.update(done); });
}

Result<int> verify(const VerifyFlags& flags) {
  KVSPAN_CHECK_OK(check_json_target(flags.json));
  KVSPAN_CHECK_OK(apply_cpu_level(flags.model));
  catch_interrupts(Interrupts::kOnce);
  if (!flags.archs.archs.empty()) {
    ArchsFlags archs = flags.archs;
    archs.recipe = flags.model.recipe;
    archs.json = flags.json;
    archs.threads = flags.model.threads;
    if (flags.tokens != VerifyFlags{}.tokens) archs.tokens = flags.tokens;
    return verify_archs(archs);
  }
  KVSPAN_TRY(std::string path, find_model_path(flags.model.model));
  KVSPAN_TRY(auto tokens,
             measured_tokens(path, flags.file, static_cast<std::size_t>(flags.tokens)));
  std::optional<TemporaryModel> temporary;
  if (flags.weights == "f32") {
    KVSPAN_TRY(temporary, TemporaryModel::float_copy_of(path, FloatWeights::kF32));
    path = temporary->path();
  }
  KVSPAN_TRY(const auto rows, compare(flags, path, tokens));

  Json json{{"tokens", tokens.size()}, {"weights", flags.weights}, {"rows", Json::array()}};
  Table table({{"against llama.cpp f32 KV"},
               {"positions", Table::Align::kRight},
               {"mean KL", Table::Align::kRight},
               {"max KL", Table::Align::kRight},
               {"KL, one by one", Table::Align::kRight},
               {"same argmax", Table::Align::kRight}});
  for (const Verification& row : rows) {
    json["rows"].push_back(to_json(row));
    table.add_row({row.name, std::to_string(row.compared), fmt::format("{:.2e}", row.kl_mean),
                   fmt::format("{:.2e}", row.kl_max), fmt::format("{:.2e}", row.kl_decoded),
                   fmt::format("{:.2f} %", 100.0 * row.top1)});
  }
  KVSPAN_CHECK_OK(write_json(json, flags.json));
  if (flags.json != "-") fmt::print("{}", table.text());
  return 0;
}

}  // namespace

Action setup_verify(CLI::App& app) {
  auto flags = std::make_shared<VerifyFlags>();
  add_model_flag(app, flags->model);
  add_engine_flags(app, flags->model);
  add_measured_text_flag(app, flags->file);
  add_integer(app, "--tokens", flags->tokens, "Tokens of the text to read", 2, 1 << 20);
  add_integer(app, "--compare", flags->compared, "Positions to compare, spread evenly", 1, 1 << 20);
  add_choice(app, "--weights", flags->weights,
             "The file's weights, or the same numbers as f32: then no activation is rounded to 8 "
             "bits, and what remains is the engines' own difference",
             {"file", "f32"});
  add_text(app, "--archs", flags->archs.archs,
           "Instead: tiny random models of all architectures that libllama has, of those named, or "
           "the model in a file, with logits of 2,000 random tokens (--tokens)",
           "all|NAME,...|FILE.gguf");
  add_json_flag(app, flags->json);
  set_footer(
      app,
      "Examples:\n"
      "  kvspan verify -m smollm2 --weights f32\n"
      "  kvspan verify -m gemma3 --tokens 1500 --compare 1000\n"
      "  kvspan verify --archs all --json archs.json\n"
      "  kvspan verify --archs llama,gemma3 --cache quant:bits=8\n"
      "The second row is llama.cpp against itself, flash attention on and off: the yardstick.");
  return [flags] { return verify(*flags); };
}

}  // namespace kvspan::cli
