// SPDX-License-Identifier: Apache-2.0
#include "eval/calibrate/calibrate.h"

#include <algorithm>
#include <cmath>

#include "base/expect.h"
#include "base/fail.h"
#include "eval/calibrate/moment_cache.h"
#include "eval/calibrate/sample_residuals.h"
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

// sum_g Wo_g' diag(gain^2) Wo_g * factor / G for each KV head: [kv_heads][value_dim^2].
// Where no single matrix follows attention (MLA), all directions count alike.
std::vector<float> output_metric(const LayerShape& shape, const OutputProjection& projection,
                                 double factor) {
  const auto heads = static_cast<std::size_t>(shape.kv_heads);
  const auto query_heads = static_cast<std::size_t>(shape.query_heads);
  const auto dim = static_cast<std::size_t>(shape.value_dim);
  if (projection.weights.empty()) {
    std::vector<float> same(heads * dim * dim);
    for (std::size_t i = 0; i < heads * dim; ++i) {
      same[i * dim + i % dim] = static_cast<float>(factor);
    }
    return same;
  }
  const std::size_t columns = detail::padded(dim), group = query_heads / heads;
  const std::size_t hidden = projection.weights.size() / (query_heads * dim);
  detail::Panel rows(hidden, spread_columns(query_heads * columns));
  for (std::size_t i = 0; i < hidden; ++i) {
    const double gain = projection.gain.empty() ? 1.0 : projection.gain[i];
    const float* from = projection.weights.data() + i * query_heads * dim;
    for (std::size_t h = 0; h < query_heads; ++h) {
      for (std::size_t j = 0; j < dim; ++j) rows(i, h * columns + j) = gain * from[h * dim + j];
    }
  }
  std::vector<float> metric;
  for (std::size_t head = 0; head < heads; ++head) {
    MomentSum sum(dim);
    for (std::size_t strip = 0; strip < sum.strips(); ++strip) {
      for (std::size_t g = 0; g < group; ++g) {
        sum.add(strip, rows, (head * group + g) * columns, 0, hidden);
      }
    }
    const auto one = sum.moment(static_cast<double>(group) / factor);
    metric.insert(metric.end(), one.begin(), one.end());
  }
  return metric;
}

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
  if (moments.tokens < 1) {
    return fail(ErrorCode::kInvalidArgument,
                "no text to calibrate on: the first {} tokens of a window are left out, and no "
                "window is longer",
                options.skip);
  }
  KVSPAN_TRY(auto inner, make_cache(shape, "full:store=f32"));
  MomentCache cache(std::move(inner), moments);
  std::vector<OutputProjection> projections;
  for (std::size_t i = 0; i < shape.layers.size(); ++i) {
    KVSPAN_TRY(auto projection, engine.output_projection(static_cast<int>(i)));
    cache.set_epsilon(i, projection.epsilon);
    projections.push_back(std::move(projection));
  }
  {
    const Observing observing(engine, &cache);
    KVSPAN_CHECK_OK(read_windows(engine, cache, windows, progress));
  }

  Calibration out = cache.moments();
  out.model = engine.info().name;
  out.fingerprint = engine.fingerprint();
  // A layer whose input is not a node of its own in the graph is taken to be like the others.
  double energy = 0.0, seen = 0.0;
  for (const LayerCalibration& layer : out.layers) {
    energy += layer.residual_energy;
    seen += layer.residual_energy > 0.0;
  }
  for (LayerCalibration& layer : out.layers) {
    if (layer.residual_energy == 0.0) layer.residual_energy = seen > 0.0 ? energy / seen : 1.0;
  }
  const std::vector<double> inverse = cache.inverse_post_norm();
  for (std::size_t i = 0; i < shape.layers.size(); ++i) {
    LayerCalibration& layer = out.layers[i];
    const double gain = projections[i].gain.empty() ? 1.0 : inverse[i];
    layer.output_metric =
        output_metric(shape.layers[i], projections[i], gain / layer.residual_energy);
    KVSPAN_CHECK_OK(add_sample_residuals(shape.layers[i], out.sample_positions, layer));
  }
  KVSPAN_CHECK_OK(check_calibration(shape, out));
  return out;
}

Result<Calibration> calibrate_on_text(Engine& engine, const std::string& text,
                                      const CalibrateOptions& options,
                                      const TokenProgress& progress) {
  KVSPAN_TRY(const auto tokenizer, Tokenizer::open(engine.info().path));
  CalibrateOptions fitted = options;
  fitted.window = std::min(options.window, engine.info().context);
  fitted.skip = std::min(options.skip, fitted.window / 4);
  WindowOptions cut;
  cut.length = static_cast<std::size_t>(fitted.window);
  cut.least = static_cast<std::size_t>(fitted.skip) + 1;
  KVSPAN_TRY(auto windows, cut_windows(*tokenizer, text, cut));
  // Whole windows first, then what is left of the tokens asked for.
  auto left = static_cast<std::size_t>(std::max<std::int64_t>(options.tokens, 0));
  for (auto& window : windows) {
    window.resize(std::min(window.size(), left));
    left -= window.size();
  }
  std::erase_if(windows, [&](const auto& window) { return window.size() < cut.least; });
  return gather_calibration(engine, windows, fitted, progress);
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
