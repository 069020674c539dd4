// SPDX-License-Identifier: Apache-2.0
#include "eval/calibrate/calibrate.h"

#include <algorithm>
#include <cmath>

#include "base/expect.h"
#include "base/fail.h"
#include "cache/calibration/array_sizes.h"
#include "eval/calibrate/moment_cache.h"
#include "eval/perplexity/windows.h"
#include "io/user_folders.h"
#include "llama/tokenizer.h"

namespace kvspan {
namespace {

// Ends the engine's use of an observer on every way out.
struct Observing {
  Engine& engine;
  Observing(Engine& watched, ActivationObserver* observer) : engine(watched) {
    engine.set_observer(observer);
  }
  ~Observing() { engine.set_observer(nullptr); }
  Observing(const Observing&) = delete;
  Observing& operator=(const Observing&) = delete;
};

std::int64_t counted_tokens(std::span<const std::vector<Token>> windows, std::int32_t skip) {
  std::int64_t counted = 0;
  for (const auto& window : windows) {
    counted += std::max<std::int64_t>(0, static_cast<std::int64_t>(window.size()) - skip);
  }
  return counted;
}

constexpr std::size_t kWidestWithNeighbours = 1024;

Status read_windows(Engine& engine, MomentCache& cache, std::span<const std::vector<Token>> windows,
                    const TokenProgress& progress) {
  std::size_t total = 0, done = 0;
  for (const auto& window : windows) total += window.size();
  for (const auto& window : windows) {
    cache.clear();
    KVSPAN_CHECK_OK(engine.prefill(cache, window, [&](std::size_t tokens) {
      if (progress) progress(done + tokens, total);
    }));
    done += window.size();
  }
  return {};
}

}  // namespace

std::int32_t default_neighbours(const CacheShape& shape) noexcept {
  const auto narrow = [](const LayerShape& layer) {
    return joint_width(layer) <= kWidestWithNeighbours;
  };
  return std::ranges::all_of(shape.layers, narrow) ? 2 : 0;
}

Result<Calibration> gather_calibration(Engine& engine, std::span<const std::vector<Token>> windows,
                                       const CalibrateOptions& options,
                                       const TokenProgress& progress) {
  const CacheShape& shape = engine.cache_shape();
  MomentOptions moments;
  moments.window = options.window;
  moments.skip = options.skip;
  moments.tokens = counted_tokens(windows, options.skip);
  moments.samples = options.samples;
  moments.block = engine.options().block;
  moments.neighbours = options.neighbours.value_or(default_neighbours(shape));
  if (moments.tokens < 1) {
    return fail(ErrorCode::kInvalidArgument,
                "no text to calibrate on: the first {} tokens of a window are left out, and no "
                "window is longer",
                options.skip);
  }
  KVSPAN_TRY(MomentCollector collector, MomentCollector::create(shape, moments));
  for (std::size_t i = 0; i < shape.layers.size(); ++i) {
    const int layer = static_cast<int>(i);
    KVSPAN_TRY(const auto projection, engine.output_projection(layer));
    OutputWeights weights;
    const std::size_t columns = static_cast<std::size_t>(shape.layers[i].query_heads) *
                                static_cast<std::size_t>(shape.layers[i].value_dim);
    weights.rows = {projection.weights.data(), {projection.weights.size() / columns, columns}};
    weights.gain = projection.gain;
    weights.epsilon = projection.epsilon;
    weights.reader = projection.reader;
    KVSPAN_CHECK_OK(collector.set_output(layer, weights));
  }
  KVSPAN_TRY(auto inner, make_cache(shape, "full:store=f32"));
  MomentCache cache(std::move(inner), collector);
  {
    const Observing observing(engine, &cache);
    KVSPAN_CHECK_OK(read_windows(engine, cache, windows, progress));
  }
  return collector.finish(engine.info().name, engine.fingerprint());
}

bool CalibrationPlan::fits(const Calibration& calibration) const {
  return calibration.tokens == counted_tokens(windows, options.skip) &&
         calibration.window == options.window && calibration.skip == options.skip &&
         calibration.neighbours == options.neighbours;
}

Result<CalibrationPlan> plan_calibration(const Engine& engine, const std::string& text,
                                         const CalibrateOptions& options) {
  KVSPAN_TRY(const auto tokenizer, Tokenizer::open(engine.info().path));
  CalibrationPlan plan;
  plan.options = options;
  plan.options.window = std::min(options.window, engine.info().context);
  plan.options.skip = std::min(options.skip, plan.options.window / 4);
  plan.options.neighbours = options.neighbours.value_or(default_neighbours(engine.cache_shape()));
  WindowOptions cut;
  cut.length = static_cast<std::size_t>(plan.options.window);
  cut.least = static_cast<std::size_t>(plan.options.skip) + 1;
  KVSPAN_TRY(auto windows, cut_windows(*tokenizer, text, cut));
  plan.windows = std::move(windows);
  // Whole windows first, then what is left of the tokens asked for.
  auto left = static_cast<std::size_t>(std::max<std::int64_t>(options.tokens, 0));
  for (auto& window : plan.windows) {
    window.resize(std::min(window.size(), left));
    left -= window.size();
  }
  std::erase_if(plan.windows, [&](const auto& window) { return window.size() < cut.least; });
  return plan;
}

Result<Calibration> calibrate_on_text(Engine& engine, const std::string& text,
                                      const CalibrateOptions& options,
                                      const TokenProgress& progress) {
  KVSPAN_TRY(const CalibrationPlan plan, plan_calibration(engine, text, options));
  return gather_calibration(engine, plan.windows, plan.options, progress);
}

Result<Calibration> ensure_calibration(Engine& engine,
                                       const std::function<Result<std::string>()>& text,
                                       const CalibrateOptions& options,
                                       const TokenProgress& progress,
                                       const std::function<Status(Calibration&)>& complete) {
  KVSPAN_TRY(auto found, find_calibration(engine));
  if (found) return *std::move(found);
  KVSPAN_TRY(const std::string path, calibration_path(engine));
  // Before the work: a folder that cannot be made would lose it.
  KVSPAN_CHECK_OK(make_folders(path.substr(0, path.rfind('/'))));
  KVSPAN_TRY(const std::string what, text());
  {
    KVSPAN_TRY(auto calibration, calibrate_on_text(engine, what, options, progress));
    if (complete) KVSPAN_CHECK_OK(complete(calibration));
    KVSPAN_CHECK_OK(save_calibration(path, calibration));
  }
  return open_calibration(engine, path);
}

}  // namespace kvspan
