// SPDX-License-Identifier: Apache-2.0
// Perplexity of recipes on windows of text, and how far their distributions are from those of the
// full cache. All caches read the same block of tokens in turn, so the reference's pass is shared
// and only one block of logits is kept. Counted are the predictions made in the second half of each
// window, as in llama.cpp's perplexity; every token attends to the past as the cache holds it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "llama/engine.h"
#include "llama/peer_llama.h"

namespace kvspan {

// Makes an empty cache of a recipe for the engine's model, with whatever it needs (a calibration).
using CacheSource = std::function<Result<std::unique_ptr<KvCache>>(const std::string& recipe)>;

struct PerplexityOptions {
  std::string reference = "full";
  // Tokens between two uses of the cache, at most the engine's. Few, so that caches act as in
  // decoding: the tokens of a block attend to each other as they came.
  std::int32_t block = 64;
  // Also llama.cpp with these KV types, on the engine's file and threads, as rows after the
  // recipes.
  std::vector<std::string> peer_kv{};
  int buckets = 0;  // > 0: also measures all positions, in this many equal parts of a window
};

// Averages over positions.
struct PerplexityFigures {
  std::size_t positions = 0;
  double ppl = 0.0;
  double dppl_pct = 0.0;  // against the reference on the same positions
  double kl = 0.0;        // mean KL(reference || recipe), nats
  double kl_p99 = 0.0;
  double top1 = 0.0;  // share of positions with the reference's most likely token
};

// Neighbouring positions of one window: what is drawn at random to say how sure a mean is.
struct PositionBlock {
  static constexpr std::int32_t kPositions = 32;
  std::int32_t window = 0;
  std::int32_t position = 0;  // the first
  std::int32_t count = 0;
  double nll_diff = 0.0;  // mean over the positions, nats above the reference
  double kl = 0.0;        // mean
};

struct BytesAt {
  std::int32_t tokens = 0;
  std::uint64_t kv_bytes = 0;
};

struct PerplexityRow {
  std::string recipe;  // canonical; "llama.cpp TYPE" for the peer
  PerplexityFigures figures;
  std::vector<PerplexityFigures> by_position;  // [buckets], from the start of the window
  std::vector<PositionBlock> blocks;           // of all positions predicted, in order
  std::vector<BytesAt> bytes_at;               // as the last window grew, block by block
  // Of the cache at the end of the last window it read, and of the same tokens in f16.
  std::int32_t tokens = 0;
  std::uint64_t kv_bytes = 0;
  std::uint64_t kv_bytes_full = 0;
  std::uint64_t shared_bytes = 0;  // of codes that all sequences share
  std::string code;                // which code was in use (api/code_source.h)
  // Positions of `figures` that were predicted from a past held in fewer bytes than f16 takes. 0
  // says that the recipe had nothing to do: a text within sink and recent, or a selector that keeps
  // all.
  std::size_t compressed_positions = 0;
  std::optional<std::string> failed;  // why; the figures are of what was read before

  bool nothing_compressed() const { return figures.positions > 0 && compressed_positions == 0; }

  // Of all bytes held, per number of a full cache; 0 where nothing was read.
  double bits() const {
    return kv_bytes_full == 0
               ? 0.0
               : 16.0 * static_cast<double>(kv_bytes) / static_cast<double>(kv_bytes_full);
  }
};

struct PerplexityReport {
  std::vector<PerplexityRow> rows;  // the reference, the recipes in order, the peer
  std::size_t windows = 0;          // read to the end
  bool cancelled = false;           // the figures are of what was read until then
};

// `windows` are within the model's context, at least 4 tokens each. A recipe that fails, or whose
// logits are not finite, leaves the others running; only a failing reference ends it all.
// `progress` gets tokens read over all caches. Cancelled by the engine's flag, it returns what is
// there.
Result<PerplexityReport> measure_perplexity(
    Engine& engine, std::span<const std::vector<Token>> windows,
    std::span<const std::string> recipes, const CacheSource& source,
    const PerplexityOptions& options,
    const std::function<void(std::size_t done, std::size_t total)>& progress = nullptr);

}  // namespace kvspan
