// SPDX-License-Identifier: Apache-2.0
// What a recipe holds after a window, without running the model for it: rows that one pass of the
// full cache made are given to a cache of the recipe as the engine would, and the cache counts.
// A selector meets all queries; how many bytes other caches hold does not depend on them, so they
// get none. Cost: that pass and its rows, at most kMostBytes; for each recipe the
// cache's own coding, and for selectors attention.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "eval/perplexity/perplexity.h"

namespace kvspan {

class ByteProbe {
 public:
  // Of all layers, so that their sum is exact; where that would take more, of some of every kind,
  // evenly spread, which then stand for the others.
  static constexpr std::size_t kMostBytes = std::size_t{1} << 30;

  // Reads `window` in blocks with a full cache. `progress` gets tokens read.
  static Result<ByteProbe> record(Engine& engine, std::span<const Token> window, std::int32_t block,
                                  const std::function<void(std::size_t)>& progress = nullptr,
                                  std::size_t most_bytes = kMostBytes);

  // All bytes of a cache of the recipe at the window's end. A recipe that was asked for before is
  // answered from memory.
  Result<std::uint64_t> bytes(const std::string& recipe, const CacheSource& source);
  // Those of the same tokens in f16.
  std::uint64_t full_bytes() const { return full_rank_f16_bytes(shape_, tokens_); }

  const CacheShape& shape() const { return shape_; }
  std::int32_t tokens() const { return tokens_; }

 private:
  struct Block {
    std::vector<std::int32_t> positions;
    std::vector<float> keys, values;  // [n, heads, dim]
    std::vector<float> queries;       // likewise
  };
  struct Layer {
    int index = 0;
    double stands_for = 1.0;  // layers of its kind
    std::vector<Block> blocks;
  };
  class Recorder;
  void choose_layers(std::size_t most_bytes);
  // Rows of these layers, as an engine would give them: block by block, one layer after the other.
  Status fill(KvCache& cache, std::span<const Layer> layers, bool asks) const;

  CacheShape shape_;
  int threads_ = 1;
  std::int32_t tokens_ = 0;
  std::vector<Layer> layers_;
  std::map<std::string, std::uint64_t> known_;  // by recipe
};

}  // namespace kvspan
