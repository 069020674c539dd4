// SPDX-License-Identifier: Apache-2.0
// kvspan info: what a model is, and what its KV cache costs.
#include <algorithm>

#include "base/fail.h"
#include "cli/command.h"
#include "cli/flags.h"
#include "cli/model_path.h"
#include "cli/output/format.h"
#include "cli/output/json_output.h"
#include "llama/engine.h"
#include "llama/tokenizer.h"

namespace kvspan::cli {
namespace {

struct InfoFlags {
  ModelFlags model;
  std::string json;
};

// Layers by window, widest first: "26 of 30 layers see 512 tokens".
std::string window_text(const CacheShape& shape) {
  std::int32_t sliding = 0, widest = 0;
  for (const LayerShape& layer : shape.layers) {
    sliding += layer.window > 0;
    widest = std::max(widest, layer.window);
  }
  if (sliding == 0) return "none";
  return fmt::format("{} of {} layers see the last {} tokens", sliding, shape.layers.size(),
                     format_count(static_cast<std::uint64_t>(widest)));
}

Json to_json(const ModelInfo& info, const CacheShape& shape, bool chat) {
  Json layers = Json::array();
  for (const LayerShape& layer : shape.layers) {
    layers.push_back({{"query_heads", layer.query_heads},
                      {"kv_heads", layer.kv_heads},
                      {"key_dim", layer.key_dim},
                      {"value_dim", layer.value_dim},
                      {"window", layer.window}});
  }
  return Json{{"path", info.path},
              {"name", info.name},
              {"architecture", info.architecture},
              {"layers", info.layers},
              {"hidden", info.hidden},
              {"vocabulary", info.vocabulary},
              {"context", info.context},
              {"query_heads", info.query_heads},
              {"kv_heads", info.kv_heads},
              {"key_dim", info.key_dim},
              {"file_bytes", info.file_bytes},
              {"weight_bytes", info.weight_bytes},
              {"chat_template", chat},
              {"kv_bytes_token", full_rank_f16_bytes(shape, 1)},
              {"kv_bytes_context", full_rank_f16_bytes(shape, info.context)},
              {"layer_shapes", std::move(layers)}};
}

void print(const ModelInfo& info, const CacheShape& shape, bool chat) {
  const auto line = [](const char* label, const std::string& value) {
    fmt::print("{:<14}{}\n", label, value);
  };
  line("file", fmt::format("{} ({})", info.path, format_bytes(info.file_bytes)));
  if (!info.name.empty()) line("name", info.name);
  line("architecture", info.architecture);
  line("layers", fmt::format("{}, hidden size {}", info.layers, info.hidden));
  line("heads",
       fmt::format("{} query, {} KV, of size {}", info.query_heads, info.kv_heads, info.key_dim));
  line("window", window_text(shape));
  line("vocabulary", format_count(static_cast<std::uint64_t>(info.vocabulary)));
  line("context", format_count(static_cast<std::uint64_t>(info.context)) + " tokens");
  line("weights", format_bytes(info.weight_bytes));
  line("chat template", chat ? "yes" : "no");
  line("KV in f16", fmt::format("{} bytes a token, {} for the whole context",
                                format_count(full_rank_f16_bytes(shape, 1)),
                                format_bytes(full_rank_f16_bytes(shape, info.context))));
}

Result<int> describe(const InfoFlags& flags) {
  KVSPAN_CHECK_OK(check_json_target(flags.json));
  KVSPAN_TRY(const std::string path, find_model_path(flags.model.model));
  KVSPAN_TRY(const auto engine, Engine::load(path, {}));
  KVSPAN_TRY(const auto tokenizer, Tokenizer::open(path));
  const bool chat = tokenizer->has_chat_template();
  KVSPAN_CHECK_OK(write_json(to_json(engine->info(), engine->cache_shape(), chat), flags.json));
  if (flags.json != "-") print(engine->info(), engine->cache_shape(), chat);
  return 0;
}

}  // namespace

Action setup_info(CLI::App& app) {
  auto flags = std::make_shared<InfoFlags>();
  add_model_flag(app, flags->model);
  add_json_flag(app, flags->json);
  set_footer(app,
             "Examples:\n"
             "  kvspan info -m smollm2\n"
             "  kvspan info -m model.gguf --json -\n");
  return [flags] { return describe(*flags); };
}

}  // namespace kvspan::cli
