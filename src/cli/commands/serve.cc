// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/serve.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <memory>
#include <optional>

#include "base/fail.h"
#include "cli/command.h"
#include "cli/flags.h"
#include "cli/model_path.h"
#include "llama/calibration_file.h"
#include "recipe/recipe.h"
#include "server/serve.h"

namespace kvspan::cli {
namespace {

constexpr std::string_view kRecipeWithoutCalibration = "bands:calib=online";

// Where one is given no model is needed, or it comes from elsewhere.
constexpr std::array<std::string_view, 12> kModelSources{
    "-hf", "-hfr",           "--hf-repo", "-mu", "--model-url",  "-dr",
    "--docker-repo", "--list-devices", "--version", "-cl", "--cache-list", "--completion-bash"};

Result<std::size_t> bytes_of(const std::string& text) {
  KeyDeclaration flag;
  flag.name = "--kv-budget";
  flag.kind = ValueKind::kBytes;
  flag.max = 0x1p52;
  auto value = parse_value(flag, text);
  const auto* bytes = value ? std::get_if<ByteCount>(&*value) : nullptr;
  if (bytes == nullptr || bytes->bytes == 0) {
    return fail(ErrorCode::kInvalidArgument, "--kv-budget {}; allowed: bytes as 512MiB, 2GiB or 1.5GB", text);
  }
  return bytes->bytes;
}

// The recipe with a code that comes from the text itself; none where its method has no such.
std::optional<std::string> without_calibration(const std::string& recipe) {
  const auto parsed = Recipe::parse(recipe);
  if (!parsed || !parsed->method().declares("calib") || parsed->selector() != nullptr) return std::nullopt;
  const std::string online = recipe + (recipe.find(':') == std::string::npos ? ":" : ",") + "calib=online";
  if (!Recipe::parse(online)) return std::nullopt;
  return online;
}

Result<server::CachePlan> plan_caches(const std::string& recipe, const std::string& model_path) {
  server::CachePlan plan;
  plan.recipe = recipe.empty() ? std::string(kDefaultRecipe) : recipe;
  KVSPAN_TRY(const bool needed, needs_calibration(plan.recipe));
  if (!needed) return plan;
  KVSPAN_TRY(plan.calibration, find_calibration(model_path));
  if (plan.calibration) return plan;
  const auto online = recipe.empty() ? std::string(kRecipeWithoutCalibration) : without_calibration(recipe);
  if (!online) {
    return fail(ErrorCode::kNotFound,
                "--cache {} needs a calibration of '{}', and none has been made (kvspan calibrate -m {} does)",
                recipe, model_path, model_path);
  }
  plan.recipe = *online;
  fmt::print(stderr,
             "kvspan: '{}' has no calibration (kvspan calibrate makes it): codes come from each text's own start, "
             "--cache {}\n",
             model_path, plan.recipe);
  return plan;
}

bool has_any(const std::vector<std::string>& words, std::initializer_list<std::string_view> names) {
  return std::any_of(words.begin(), words.end(), [&](const std::string& word) {
    return std::find(names.begin(), names.end(), word) != names.end();
  });
}

}  // namespace

Result<ServeFlags> split_serve_flags(const std::vector<std::string>& arguments) {
  ServeFlags flags;
  struct Ours {
    std::string_view name;
    std::string* target;
  };
  const std::array ours{Ours{"--cache", &flags.recipe}, Ours{"--kv-budget", &flags.budget},
                        Ours{"--kv-wait", &flags.wait},
                        Ours{"--store", &flags.store.place}, Ours{"--store-namespace", &flags.store.name_space},
                        Ours{"--store-ttl", &flags.store.ttl},
                        Ours{"--store-wait", &flags.store.wait}, Ours{"-m", &flags.model}, Ours{"--model", &flags.model}};
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& word = arguments[i];
    const std::size_t equals = word.starts_with("--") ? word.find('=') : std::string::npos;
    const std::string_view name = std::string_view(word).substr(0, equals);
    const auto found = std::find_if(ours.begin(), ours.end(), [&](const Ours& one) { return one.name == name; });
    if (found != ours.end()) {
      if (equals != std::string::npos) {
        *found->target = word.substr(equals + 1);
      } else if (i + 1 < arguments.size()) {
        *found->target = arguments[++i];
      } else {
        return fail(ErrorCode::kInvalidArgument, "{} needs a value (see kvspan serve --help)", name);
      }
      continue;
    }
    if (word == "--fixed-threads") {
      flags.fixed_threads = true;
      continue;
    }
    if (word == "-h" || word == "--help" || word == "--usage") flags.help = true;
    if ((word == "-n" || word == "--predict" || word == "--n-predict") && i + 1 < arguments.size()) {
      const std::string& number = arguments[i + 1];
      std::from_chars(number.data(), number.data() + number.size(), flags.answer_tokens);
    }
    flags.others.push_back(word);
  }
  return flags;
}

Result<int> run_serve(const std::vector<std::string>& arguments, const std::string& help) {
  KVSPAN_TRY(ServeFlags flags, split_serve_flags(arguments));
  server::ServeOptions options;
  const std::string recipe = flags.recipe;
  if (flags.help) {
    fmt::print("{}\nllama-server's flags:\n\n", help);
    std::fflush(stdout);
    options.plan = [](const std::string&) -> Result<server::CachePlan> { return server::CachePlan{}; };
    return server::serve({"--help"}, std::move(options));
  }
  if (!recipe.empty()) KVSPAN_CHECK_OK(Recipe::parse(recipe));
  if (!flags.budget.empty()) {
    KVSPAN_TRY(options.kv_budget_bytes, bytes_of(flags.budget));
  }
  if (!flags.wait.empty()) {
    KVSPAN_TRY(options.kv_wait_seconds, seconds_of("--kv-wait", flags.wait));
  }
  options.answer_tokens = flags.answer_tokens;
  options.adapt_threads = !flags.fixed_threads;
  options.page = !has_any(flags.others, {"--no-ui", "--no-webui"});
  KVSPAN_TRY(const std::shared_ptr<server::StoredPrefixes> store, open_prefix_store(flags.store, flags.others));
  options.prefix_blocks = store;
  if (has_any(flags.others, {"-mm", "--mmproj", "-mmu", "--mmproj-url"})) {
    return fail(ErrorCode::kUnsupported, "--mmproj: kvspan's caches take text, no pictures or sounds yet");
  }
  for (const char* router : {"--models-dir", "--models-preset"}) {
    if (has_any(flags.others, {router})) {
      return fail(ErrorCode::kUnsupported, "{}: kvspan serve serves one model; start one for each", router);
    }
  }
  if (has_any(flags.others, {"-ctk", "--cache-type-k", "-ctv", "--cache-type-v"})) {
    fmt::print(stderr, "kvspan: --cache RECIPE says how keys and values are kept; --cache-type-k and -v say nothing here\n");
  }
  const bool elsewhere = std::any_of(flags.others.begin(), flags.others.end(), [](const std::string& word) {
    return std::find(kModelSources.begin(), kModelSources.end(), word) != kModelSources.end();
  });
  // What the server would make room for is not what the caches take, and the context is as asked for.
  std::vector<std::string> words{"--fit", "off", "--no-mmproj"};
  std::shared_ptr<std::optional<server::CachePlan>> known = std::make_shared<std::optional<server::CachePlan>>();
  if (!flags.model.empty() || !elsewhere) {
    KVSPAN_TRY(const std::string path, find_model_path(flags.model.empty() ? "smollm2" : flags.model));
    words.insert(words.end(), {"--model", path});
    KVSPAN_TRY(*known, plan_caches(recipe, path));
  }
  if (options.kv_budget_bytes > 0 && !has_any(flags.others, {"--threads-http"})) {
    words.insert(words.end(), {"--threads-http", "128"});  // requests that wait each hold one
  }
  words.insert(words.end(), flags.others.begin(), flags.others.end());
  options.plan = [recipe, known, store, others = flags.others](
                     const std::string& model_path) -> Result<server::CachePlan> {
    server::CachePlan plan;
    if (*known) {
      plan = **known;
    } else {
      KVSPAN_TRY(plan, plan_caches(recipe, model_path));
    }
    if (store) KVSPAN_CHECK_OK(name_model(*store, model_path, plan, others));
    return plan;
  };
  return server::serve(words, std::move(options));
}

// Only for --help and completion: the program hands everything after `serve` to run_serve.
Action setup_serve(CLI::App& app) {
  auto flags = std::make_shared<ServeFlags>();
  add_text(app, "-m,--model", flags->model, "Model: a name (see kvspan pull) or a GGUF file; smollm2 unless the server gets one another way", "MODEL");
  add_recipe_flag(app, "--cache", flags->recipe, "How keys and values are kept");
  add_text(app, "--kv-budget", flags->budget, "Most bytes of all sequences together, as 2GiB; requests that do not fit wait", "SIZE");
  add_text(app, "--kv-wait", flags->wait, "Seconds that a request waits for room before it is answered with 429 (60)", "SECONDS");
  add_text(app, "--store", flags->store.place,
           "Keeps caches of prompts for those that begin alike: memory:SIZE, disk:FOLDER[:SIZE] or "
           "redis://[user:password@]host[:port][/database]",
           "PLACE");
  add_text(app, "--store-namespace", flags->store.name_space, "Only servers with the same text share entries", "TEXT");
  add_text(app, "--store-ttl", flags->store.ttl, "Seconds that an entry in Redis lives after its last use (86400)", "SECONDS");
  add_text(app, "--store-wait", flags->store.wait, "Seconds that a prompt waits for the store before it is computed (0.5)", "SECONDS");
  add_switch(app, "--fixed-threads", flags->fixed_threads, "Uses all threads also while other programs need the processors");
  set_footer(app,
             "Without --cache a model with a calibration gets " + std::string(kDefaultRecipe) + ", another " +
                 std::string(kRecipeWithoutCalibration) +
                 ".\nGET /kv shows what the caches hold, /metrics has it for Prometheus (--metrics).\n\n"
                 "Examples:\n"
                 "  kvspan serve -m smollm2\n"
                 "  kvspan serve -m smollm2 --cache bands:bits=2 -c 32768 --parallel 4 --port 8080\n"
                 "  kvspan serve -m smollm2 --store redis://default:password@10.0.0.1:6379/0 --store-namespace tenant\n"
                 "  kvspan serve -m model.gguf --cache quant:bits=8 --kv-budget 2GiB --metrics --api-key secret\n");
  return []() -> Result<int> { return run_serve({}, ""); };
}

}  // namespace kvspan::cli
