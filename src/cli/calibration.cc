// SPDX-License-Identifier: Apache-2.0
#include "cli/calibration.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <optional>

#include "api/code_source.h"
#include "base/fail.h"
#include "cli/data_folder.h"
#include "cli/known_layer_weights.h"
#include "cli/output/format.h"
#include "cli/output/progress_bar.h"
#include "cli/temporary_model.h"
#include "cli/terminal/interrupt.h"
#include "cli/terminal/text_input.h"
#include "eval/calibrate/layer_weights.h"
#include "eval/engine_caches.h"
#include "eval/perplexity/perplexity.h"
#include "eval/perplexity/windows.h"
#include "eval/study/rate_curve.h"
#include "io/atomic_file.h"
#include "llama/tokenizer.h"
#include "recipe/recipe.h"

namespace kvspan::cli {
namespace {

// Of weighing layers.
constexpr std::int32_t kWeighedWindow = 512;
// Sixteenths of the text at which a window is read: of the text that comes with kvspan, which is
// eight parts of four kinds, one of each kind.
constexpr std::array<std::size_t, 4> kWeighedAt{1, 5, 11, 15};
constexpr double kWeighedBits = 1.0;
constexpr std::size_t kTimedTokens = 256;  // read to say how long that takes

// Reads the beginning of a passage in the way in which all will be read, once for each side of
// every layer, an exact pass for ten of them, and the rates.
Status say_how_long(Engine& engine, const std::vector<std::vector<Token>>& passages) {
  std::vector<std::vector<Token>> beginning{passages[0]};
  beginning[0].resize(std::min(beginning[0].size(), kTimedTokens));
  const auto full = [&](const std::string& name) { return make_cache(engine.cache_shape(), name); };
  const auto started = std::chrono::steady_clock::now();
  KVSPAN_TRY(const PerplexityReport report, measure_perplexity(engine, beginning, {}, full, {}));
  if (report.cancelled) return fail(ErrorCode::kCancelled, "stopped");
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - started;
  const std::size_t sides = 2 * engine.cache_shape().layers.size();
  const std::size_t tokens =
      (sides + (sides + 9) / 10 + kRatePasses) * passages.size() * (passages[0].size() / 3 * 4);
  const double seconds =
      taken.count() * static_cast<double>(tokens) / static_cast<double>(beginning[0].size());
  fmt::print(
      stderr,
      "kvspan: measuring what errors of each layer cost will take about {}; the calibration is in "
      "use meanwhile, and a later `kvspan calibrate` does this where it is stopped (--quick "
      "leaves it out)\n",
      seconds < 90.0 ? fmt::format("{:.0f} seconds", std::max(1.0, seconds))
                     : fmt::format("{:.0f} minutes", std::ceil(seconds / 60.0)));
  return {};
}

void announce(const Choice& choice, const Engine& engine) {
  std::string text = fmt::format("kvspan: auto chose {}", choice.recipe);
  if (choice.tokens > 0) {
    text += fmt::format(
        ", at most {} bytes at {} tokens, {} less than f16", format_count(choice.bytes),
        format_count(static_cast<std::size_t>(choice.tokens)),
        format_ratio(full_rank_f16_bytes(engine.cache_shape(), choice.tokens), choice.bytes));
  }
  if (choice.expected) {
    text += fmt::format("; expected: {:+.2f} % perplexity, KL {:.4f}",
                        100.0 * double{choice.expected->loss}, choice.expected->kl);
  } else {
    text += "; what it costs has not been measured (`kvspan calibrate` does)";
  }
  fmt::print(stderr, "{}\n", text);
}

}  // namespace

Result<std::string> calibration_text(const std::string& file) {
  std::string path = file;
  if (path.empty()) {
    KVSPAN_TRY(const std::string folder, data_folder());
    path = folder + "/text/calibration.txt";
  }
  KVSPAN_TRY(const auto bytes, read_file(path));
  std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  KVSPAN_CHECK_OK(check_text(text, path));
  return text;
}

Result<Calibration> calibration_for(Engine& engine) {
  std::optional<ProgressBar> bar;
  const auto text = [&]() -> Result<std::string> {
    fmt::print(stderr,
               "kvspan: {} has no calibration yet; making it once (--cache full needs none)\n",
               engine.info().name);
    return calibration_text();
  };
  const auto progress = [&](std::size_t done, std::size_t total) {
    if (!bar) bar.emplace("calibrating", "tokens", total);
    bar->update(done);
  };
  // Measuring them would make the first answer wait for many minutes more.
  const auto complete = [&](Calibration& calibration) -> Status {
    bar.reset();
    KVSPAN_TRY(const bool known, take_known_layer_weights(calibration));
    if (!known) {
      fmt::print(
          stderr,
          "kvspan: what errors of each layer cost is not known for {}, bands takes all alike; "
          "`kvspan calibrate` measures it\n",
          engine.info().name);
    }
    return {};
  };
  return ensure_calibration(engine, text, {}, progress, complete);
}

Status measure_costs(const std::string& model_path, const EngineOptions& options,
                     const std::string& text, Calibration& calibration) {
  KVSPAN_TRY(const auto floats, TemporaryModel::float_copy_of(model_path, FloatWeights::kF16));
  KVSPAN_TRY(const auto engine, Engine::load(floats.path(), options));
  engine->set_cancel_flag(&interrupted());
  KVSPAN_TRY(const auto tokenizer, Tokenizer::open(model_path));
  WindowOptions cut;
  cut.length = static_cast<std::size_t>(std::min(kWeighedWindow, engine->info().context)) / 4 * 3;
  KVSPAN_TRY(const auto passages, cut_windows(*tokenizer, text, cut));
  std::vector<std::vector<Token>> read;
  for (const std::size_t at : kWeighedAt) read.push_back(passages[passages.size() * at / 16]);
  KVSPAN_CHECK_OK(say_how_long(*engine, read));
  std::optional<ProgressBar> bar;
  const auto under = [&](const char* what) {
    bar.reset();
    return [&bar, what](std::size_t done, std::size_t total) {
      if (!bar) bar.emplace(what, "tokens", total);
      bar->update(done);
    };
  };
  KVSPAN_CHECK_OK(
      measure_layer_weights(*engine, read, kWeighedBits, calibration, under("weighing layers")));
  return measure_rates(*engine, read, calibration, under("measuring rates"));
}

std::string CodeNote::line(const KvCache& cache) {
  const std::string code = code_source(cache);
  std::string text = code.empty() ? "" : fmt::format("kvspan: {}: code {}\n", cache.recipe(), code);
  if (text == last_) return "";
  last_ = text;
  return text;
}

Result<CacheFactory> caches_for(Engine& engine, const std::string& recipe) {
  KVSPAN_TRY(const bool needed, needs_calibration(recipe));
  if (!needed) return engine_caches(engine, recipe, nullptr);
  std::string problem;
  KVSPAN_TRY(auto kept, kept_caches(engine, recipe, problem));
  if (!problem.empty()) {
    fmt::print(stderr, "kvspan: {}; the codes are designed anew\n", problem);
  }
  KVSPAN_TRY(const Recipe parsed, Recipe::parse(recipe));
  const bool chooses = parsed.method().method().kind == MethodKind::kChooser;  // and says what
  if (kept && !chooses) return *std::move(kept);
  KVSPAN_TRY(const Calibration calibration, calibration_for(engine));
  KVSPAN_TRY(const auto choice, engine_choice(engine, recipe, calibration));
  if (choice) announce(*choice, engine);
  if (kept) return *std::move(kept);
  std::optional<ProgressBar> bar;
  KVSPAN_TRY(const CacheFactory caches,
             engine_caches(engine, recipe, &calibration, [&](std::size_t done, std::size_t total) {
               if (!bar) bar.emplace("designing codes, once", "steps", total);
               bar->update(done);
               return !interrupted();
             }));
  bar.reset();
  if (const Status status = keep_codes(engine, recipe, caches); !status) {
    fmt::print(stderr, "kvspan: the codes are not kept for the next start: {}\n",
               status.error().message);
  }
  return caches;
}

Result<std::unique_ptr<KvCache>> new_cache(Engine& engine, const std::string& recipe) {
  KVSPAN_TRY(const CacheFactory caches, caches_for(engine, recipe));
  return caches.make();
}

}  // namespace kvspan::cli
