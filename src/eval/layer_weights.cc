// SPDX-License-Identifier: Apache-2.0
#include "eval/layer_weights.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>

#include "base/expect.h"
#include "base/fail.h"
#include "base/thread_pool.h"
#include "eval/divergence.h"
#include "eval/layer_probe.h"
#include "method/bands_design.h"

namespace kvspan {
namespace {

constexpr std::size_t kBlockShare = 6;  // a passage is so many times as long as its block
// A side whose KL is less than this share of the largest is taken to cost that much: it is near the
// engine's own rounding, and a weight of 0 would leave it no bits at all.
constexpr double kLeastShare = 1e-3;
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
    calibration.layers[0].key_weight = calibration.layers[0].value_weight = 0.0f;
  }
};

struct Side {
  std::size_t layer;
  bool keys;
  double distortion = 0.0, kl = 0.0;
};

BandsOptions coding_of(const Side& side, double bits) {
  BandsOptions options;
  options.joint = false;
  options.key_bits = side.keys ? bits : kExactBits;
  options.value_bits = side.keys ? kExactBits : bits;
  options.levels = std::get<LevelSet>(*read_value(ValueKind::kLevels, "0-6/8"));
  return options;
}

// A cache of the side's layer in which that side is coded, and what it should cost by the metrics.
Result<std::unique_ptr<KvCache>> prepare(const CacheShape& shape, const Calibration& calibration,
                                         double bits, Side& side) {
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
  return caches.make();
}

// What is read of a passage once, and what after it with every side: how it goes on, and then as
// much of its first half once more.
struct Reading {
  std::span<const Token> prefix;
  std::vector<Token> block;

  explicit Reading(std::span<const Token> passage) {
    const std::size_t half = passage.size() / kBlockShare / 2;
    prefix = passage.first(passage.size() - half);
    const auto ahead = passage.last(half), again = passage.subspan(passage.size() / 4, half);
    block.assign(ahead.begin(), ahead.end());
    block.insert(block.end(), again.begin(), again.end());
  }
  std::size_t tokens(std::size_t sides) const { return prefix.size() + (sides + 1) * block.size(); }
};

// The block's predictions with the exact cache, and how far others are from them.
class BlockDivergence {
 public:
  explicit BlockDivergence(const Engine& engine)
      : engine_(engine),
        threads_(engine.options().threads),
        width_(static_cast<std::size_t>(engine.info().vocabulary)) {}

  // The engine's logits are the exact ones.
  void keep() {
    const auto rows = static_cast<std::size_t>(engine_.logit_rows());
    exact_.clear();
    softmax_.resize(rows);
    std::vector<float> scratch;
    for (std::size_t i = 0; i < rows; ++i) {
      const auto logits = engine_.logits(static_cast<std::int32_t>(i));
      exact_.insert(exact_.end(), logits.begin(), logits.end());
      softmax_[i] = log_softmax(logits, scratch);
    }
  }
  // Mean KL(exact || the engine's) over the block.
  double mean() {
    std::vector<double> kl(softmax_.size());
    threads_.run([&](Team& team) {
      std::vector<float> scratch;
      for (std::size_t i; (i = static_cast<std::size_t>(team.take())) < kl.size();) {
        const auto logits = engine_.logits(static_cast<std::int32_t>(i));
        const LogSoftmax found = log_softmax(logits, scratch);
        kl[i] = kl_divergence(std::span(exact_).subspan(i * width_, width_), softmax_[i], logits,
                              found, scratch);
      }
    });
    double sum = 0.0;
    for (const double one : kl) sum += one;
    return sum / static_cast<double>(kl.size());
  }

 private:
  const Engine& engine_;
  ThreadPool threads_;
  std::size_t width_;
  std::vector<float> exact_;  // [rows of the block, vocabulary]
  std::vector<LogSoftmax> softmax_;
};

// The block after what the cache holds, which then holds no more than before.
Status read_block(Engine& engine, LayerProbe& probe, std::span<const Token> block) {
  const std::int32_t before = probe.tokens();
  const BatchPart part{&probe, block, BatchPart::Logits::kAll};
  KVSPAN_CHECK_OK(engine.decode({&part, 1}));
  return probe.truncate(before);
}

// Weights from what was measured.
void weigh(std::span<const Side> sides, Calibration& calibration) {
  double largest = 0.0;
  for (const Side& side : sides) largest = std::max(largest, side.kl);
  for (const Side& side : sides) {
    LayerCalibration& layer = calibration.layers[side.layer];
    const double kl = std::max(side.kl, std::max(kLeastShare * largest, 1e-9));
    const double weight = kl / std::max(side.distortion, 1e-12);
    (side.keys ? layer.key_weight : layer.value_weight) = static_cast<float>(weight);
  }
}

}  // namespace

Status measure_layer_weights(Engine& engine, std::span<const std::vector<Token>> passages,
                             double bits, Calibration& calibration, const TokenProgress& progress) {
  const CacheShape& shape = engine.cache_shape();
  KVSPAN_EXPECT(!passages.empty() && passages[0].size() >= 96, "passages of at least 96 tokens");
  KVSPAN_CHECK_OK(check_calibration(shape, calibration));
  std::vector<Side> sides;
  std::vector<LayerProbe::Coded> coded;
  for (std::size_t l = 0; l < shape.layers.size(); ++l) {
    for (const bool keys : {true, false}) {
      sides.push_back({.layer = l, .keys = keys});
      KVSPAN_TRY(auto cache, prepare(shape, calibration, bits, sides.back()));
      coded.push_back({static_cast<int>(l), std::move(cache)});
    }
  }
  KVSPAN_TRY(auto exact, make_cache(shape, "full"));
  LayerProbe probe(std::move(exact), std::move(coded));
  BlockDivergence divergence(engine);
  std::size_t total = 0, done = 0;
  for (const auto& passage : passages) total += Reading(passage).tokens(sides.size());
  const auto advance = [&](std::size_t tokens) {
    done += tokens;
    if (progress) progress(done, total);
  };
  for (const auto& passage : passages) {
    const Reading reading(passage);
    probe.clear();
    KVSPAN_CHECK_OK(engine.prefill(probe, reading.prefix));
    advance(reading.prefix.size());
    probe.read(std::nullopt);
    KVSPAN_CHECK_OK(read_block(engine, probe, reading.block));
    divergence.keep();
    advance(reading.block.size());
    for (std::size_t i = 0; i < sides.size(); ++i) {
      probe.read(i);
      KVSPAN_CHECK_OK(read_block(engine, probe, reading.block));
      const double kl = divergence.mean();
      if (!std::isfinite(kl)) {
        return fail(ErrorCode::kInvalidArgument, "layer {}: its logits are not finite",
                    sides[i].layer);
      }
      sides[i].kl += kl / static_cast<double>(passages.size());
      advance(reading.block.size());
    }
  }
  weigh(sides, calibration);
  return check_calibration(shape, calibration);
}

}  // namespace kvspan
