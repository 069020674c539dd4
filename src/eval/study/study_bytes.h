// SPDX-License-Identifier: Apache-2.0
// What a recipe holds after a window, without running the model for it: rows and queries of two
// layers are kept from one pass, and given to a cache of the recipe as the engine would.
// Cost: that pass; for each recipe the cache's own work on two layers.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "eval/perplexity/perplexity.h"

namespace kvspan {

class ByteProbe {
 public:
  // Reads `window` in blocks with a full cache. `progress` gets tokens read.
  static Result<ByteProbe> record(Engine& engine, std::span<const Token> window, std::int32_t block,
                                  const std::function<void(std::size_t)>& progress = nullptr);

  // Bits per number, all bytes counted, of a cache of the recipe at the window's end: those of two
  // layers taken for all. A recipe that was asked for before is answered from memory.
  Result<double> bits(const std::string& recipe, const CacheSource& source);

 private:
  struct Block {
    std::vector<std::int32_t> positions;
    std::vector<float> keys, values, queries;  // [n, heads, dim]
  };
  struct Layer {
    int index = 0;
    std::vector<Block> blocks;
  };
  class Recorder;
  Status fill(KvCache& cache) const;
  Status fill_layer(KvCache& cache, const Layer& layer, std::vector<float>& answers,
                    AttentionScratch& scratch, Team& team) const;

  CacheShape shape_;
  int threads_ = 1;
  std::int32_t tokens_ = 0;
  std::vector<Layer> layers_;
  std::map<std::string, double> known_;  // bits by recipe
};

}  // namespace kvspan
