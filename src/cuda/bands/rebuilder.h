// SPDX-License-Identifier: Apache-2.0
// Rows of what sequences hold: full-rank ones copied, codes taken apart so many tokens at a time
// and multiplied by their layer's synthesis.
#pragma once

#include <span>

#include "cuda/bands/layer_tables.h"
#include "cuda/blas.h"
#include "cuda/rebuild_call.h"

namespace kvspan::cuda {

class Rebuilder {
 public:
  // One sequence in one layer.
  struct Held {
    const std::int32_t *code_pages, *row_pages;
    std::int32_t sink, coded, tokens;
  };

  // tokens: taken apart at once, in memory of bytes_for them that others may use in between. 0:
  // nothing can be rebuilt.
  static std::size_t bytes_for(std::span<const LayerTables> layers, std::int32_t tokens);
  Status create(std::span<const LayerTables> layers, std::int32_t tokens, std::byte* memory);
  // Rows of positions from rows.first on.
  Status rebuild(const LayerTables& layer, const Held& held, const RebuildRows& rows,
                 cudaStream_t stream) const;

 private:
  std::int32_t tokens_ = 0;
  Blas blas_;
  __half* levels_ = nullptr;
  float* products_ = nullptr;
};

}  // namespace kvspan::cuda
