// SPDX-License-Identifier: Apache-2.0
#include "eval/calibrate/layer_weights.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>

#include "base/expect.h"
#include "base/fail.h"
#include "eval/calibrate/one_layer_cache.h"
#include "eval/perplexity/perplexity.h"
#include "method/bands/bands_design.h"

namespace kvspan {
namespace {

constexpr std::size_t kLayersTogether = 5;  // share one exact pass; bounds the caches held at once
constexpr std::int32_t kBlock = 64;         // so that little of the coded past is still exact
// A side whose KL is less than this share of the largest is taken to cost that much: it is near the
// engine's own rounding, and a weight of 0 would leave it no bits at all.
constexpr double kLeastShare = 1e-3;
constexpr double kLeastKl = 1e-9;
constexpr double kExactBits = 8.0;  // of the other side

// One layer of a model with its calibration, as a model of its own.
struct OneLayer {
  CacheShape shape;
  Calibration calibration;
  OneLayer(const CacheShape& all, const Calibration& from, std::size_t layer)
      : shape{{all.layers[layer]}} {
    calibration.tokens = from.tokens;
    calibration.window = from.window;
    calibration.skip = from.skip;
    calibration.sample_positions = from.sample_positions;
    calibration.layers = {from.layers[layer]};
    calibration.layers[0].cross_moments.clear();  // no layer follows
    calibration.layers[0].key_weight = calibration.layers[0].value_weight = 0.0f;
  }
};

struct Side {
  std::size_t layer;
  bool keys;
  double distortion = 0.0;
  std::vector<double> kl = {};  // of each window
  std::unique_ptr<KvCache> cache;
};

BandsOptions coding_of(const Side& side, double bits) {
  BandsOptions options;
  options.joint = false;
  options.key_bits = side.keys ? bits : kExactBits;
  options.value_bits = side.keys ? kExactBits : bits;
  options.levels = std::get<LevelSet>(*read_value(ValueKind::kLevels, "0-6/8"));
  return options;
}

// The cache in which one side of one layer is coded, and what it should cost by the metrics.
Status prepare(const CacheShape& shape, const Calibration& calibration, double bits, Side& side) {
  const OneLayer one(shape, calibration, side.layer);
  const BandsOptions options = coding_of(side, bits);
  const HeadRange heads{0, one.shape.layers[0].kv_heads};
  KVSPAN_TRY(const auto designed, design_bands(one.shape, one.calibration, {{heads}}, options,
                                               std::make_shared<Ledger>()));
  side.distortion = side.keys ? designed[0][0].key_distortion : designed[0][0].value_distortion;
  const std::string recipe =
      fmt::format("bands:share=layer,kbits={},vbits={},sink=32,recent=32,escape=0",
                  options.key_bits, options.value_bits);
  KVSPAN_TRY(const CacheFactory caches, CacheFactory::create(one.shape, recipe, &one.calibration));
  KVSPAN_TRY(auto exact, make_cache(shape, "full"));
  side.cache = std::make_unique<OneLayerCache>(std::move(exact), caches.make(),
                                               static_cast<int>(side.layer));
  return {};
}

// Mean divergence of each window; 0 where a window has no prediction.
std::vector<double> kl_of_windows(std::span<const PositionBlock> blocks, std::size_t windows) {
  std::vector<double> sums(windows, 0.0), counts(windows, 0.0);
  for (const PositionBlock& block : blocks) {
    const auto window = static_cast<std::size_t>(block.window);
    sums[window] += block.kl * block.count;
    counts[window] += block.count;
  }
  for (std::size_t w = 0; w < windows; ++w) sums[w] /= std::max(counts[w], 1.0);
  return sums;
}

// The geometric mean: a few predictions that one error flips make a window's mean a hundred times
// what it is elsewhere, and would decide an arithmetic one.
double middle_kl(std::span<const double> of_windows, std::span<const double> least) {
  double sum = 0.0;
  for (std::size_t w = 0; w < least.size(); ++w) sum += std::log(std::max(of_windows[w], least[w]));
  return std::exp(sum / static_cast<double>(least.size()));
}

// Parts A B A C of a passage A B C; a begin-of-text token is not repeated.
std::vector<Token> retrieval_window(std::span<const Token> passage) {
  const auto third = static_cast<std::ptrdiff_t>(passage.size() / 3);
  std::vector<Token> window(passage.begin(), passage.begin() + 2 * third);
  window.insert(window.end(), passage.begin() + 1, passage.begin() + third + 1);
  window.insert(window.end(), passage.begin() + 2 * third, passage.begin() + 3 * third);
  return window;
}

}  // namespace

Status measure_layer_weights(Engine& engine, std::span<const std::vector<Token>> passages,
                             double bits, Calibration& calibration, const TokenProgress& progress) {
  const CacheShape& shape = engine.cache_shape();
  KVSPAN_EXPECT(!passages.empty() && passages[0].size() >= 12, "a passage to read");
  KVSPAN_CHECK_OK(check_calibration(shape, calibration));
  std::vector<std::vector<Token>> windows;
  for (const auto& passage : passages) windows.push_back(retrieval_window(passage));
  std::vector<Side> sides;
  for (std::size_t l = 0; l < shape.layers.size(); ++l) {
    sides.push_back({.layer = l, .keys = true, .cache = nullptr});
    sides.push_back({.layer = l, .keys = false, .cache = nullptr});
  }
  const std::size_t together = 2 * kLayersTogether;
  const std::size_t groups = (sides.size() + together - 1) / together;
  const std::size_t total = (sides.size() + groups) * windows.size() * windows[0].size();
  std::size_t done = 0;
  for (std::size_t first = 0; first < sides.size(); first += together) {
    const auto group = std::span(sides).subspan(first, std::min(together, sides.size() - first));
    std::vector<std::string> names;
    for (Side& side : group) {
      KVSPAN_CHECK_OK(prepare(shape, calibration, bits, side));
      names.push_back(std::to_string(names.size()));
    }
    const auto source = [&](const std::string& name) -> Result<std::unique_ptr<KvCache>> {
      if (name == "full") return make_cache(shape, name);
      return std::move(group[std::stoul(name)].cache);
    };
    PerplexityOptions reading;
    reading.block = std::min(kBlock, engine.options().block);
    KVSPAN_TRY(const PerplexityReport report,
               measure_perplexity(engine, windows, names, source, reading,
                                  [&](std::size_t part, std::size_t) {
                                    if (progress) progress(done + part, total);
                                  }));
    if (report.cancelled) return fail(ErrorCode::kCancelled, "stopped");
    for (std::size_t i = 0; i < group.size(); ++i) {
      const PerplexityRow& row = report.rows[i + 1];
      if (row.failed) {
        return fail(ErrorCode::kInvalidArgument, "layer {}: {}", group[i].layer, *row.failed);
      }
      group[i].kl = kl_of_windows(row.blocks, windows.size());
    }
    done += report.rows.size() * windows.size() * windows[0].size();
  }

  std::vector<double> least(windows.size(), kLeastKl);
  for (const Side& side : sides) {
    for (std::size_t w = 0; w < least.size(); ++w) {
      least[w] = std::max(least[w], kLeastShare * side.kl[w]);
    }
  }
  for (const Side& side : sides) {
    LayerCalibration& layer = calibration.layers[side.layer];
    const double weight = middle_kl(side.kl, least) / std::max(side.distortion, 1e-12);
    (side.keys ? layer.key_weight : layer.value_weight) = static_cast<float>(weight);
  }
  return check_calibration(shape, calibration);
}

}  // namespace kvspan
