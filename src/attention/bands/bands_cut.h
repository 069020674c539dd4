// SPDX-License-Identifier: Apache-2.0
// How a call of attend_bands is cut into items, and the memory that one takes. Depends on shapes
// alone, so that any team gives the same bits.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "attention/bands/bands_scratch.h"
#include "base/memory.h"
#include "cache/bands/bands_store.h"
#include "kvspan/cache.h"

namespace kvspan {

// Items are blocks of query rows times chunks of tiles.
struct BandsCut {
  static constexpr std::int32_t kRowBlock = 36;      // query rows that meet a tile together
  static constexpr std::int32_t kRebuiltRows = 144;  // the same where keys are rebuilt for them
  static constexpr std::int32_t kChunkTiles = 32, kMostChunks = 32;

  std::int32_t first_query_head, query_heads, per_head, positions, tiles, row_positions, row_blocks,
      chunk_tiles, chunks,
      before;  // before: tiles that the first chunk lacks, so that chunks end with anchors

  std::span<const std::int32_t> some;  // tiles that are read, of which the others count; empty: all

  // keys: of the heads from first_head on.
  BandsCut(const LayerShape& layer, std::int32_t first_head, const Queries& queries,
           const BandsStore& keys, std::span<const std::int32_t> chosen = {})
      : first_query_head(first_head * (layer.query_heads / layer.kv_heads)),
        query_heads(keys.code().heads() * (layer.query_heads / layer.kv_heads)),
        per_head(layer.query_heads / layer.kv_heads),
        positions(static_cast<std::int32_t>(queries.positions.size())),
        tiles(chosen.empty() ? keys.tiles() : static_cast<std::int32_t>(chosen.size())),
        row_positions(
            std::clamp((keys.code().before_rope() ? kRebuiltRows : kRowBlock) / query_heads, 1,
                       std::max(positions, 1))),
        row_blocks((positions + row_positions - 1) / row_positions),
        chunk_tiles(kChunkTiles),
        before(0),
        some(chosen) {
    // Many rows keep every thread busy; few share the tokens out, in chunks whose number is bounded
    // as their partial results are kept.
    if (row_blocks >= 16) chunk_tiles = std::max(tiles, 1);
    while (tiles > (kMostChunks - 1) * chunk_tiles) chunk_tiles *= 2;
    if (tiles > chunk_tiles && some.empty())
      before = keys.first_position() / BandsStore::kTileTokens % chunk_tiles;
    chunks = std::max(1, (before + tiles + chunk_tiles - 1) / chunk_tiles);
  }
  std::int32_t first_tile(std::int32_t chunk) const {
    return std::clamp(chunk * chunk_tiles - before, 0, tiles);
  }
  // The tile of the store that is the i-th of those read.
  std::int32_t tile(std::int32_t i) const {
    return some.empty() ? i : some[static_cast<std::size_t>(i)];
  }
  // Rows of a block are ordered by the head of keys that they meet, then by position, then by query
  // head, so that those that meet one head lie together.
  struct Row {
    // head: of the store's; position: an index of the call's; query_head: of the layer's
    std::int32_t head, position, query_head;
  };
  Row row(std::int32_t block, std::int32_t r) const {
    const std::int32_t n = positions_of(block), head = r / (n * per_head);
    return {head, block * row_positions + r / per_head % n,
            first_query_head + head * per_head + r % per_head};
  }
  std::int32_t positions_of(std::int32_t block) const {
    return std::min(row_positions, positions - block * row_positions);
  }
  std::int32_t rows_of(std::int32_t block) const { return positions_of(block) * query_heads; }
  std::int32_t items() const { return row_blocks * chunks; }
};

// Where the partial result of query rows has what: maxima, sums and sums of weights times gains of
// all rows, then, from a whole cache line on, weighted codes of each, zeros after the last place.
struct BandsStateLayout {
  std::size_t coefficients, stride, floats;

  BandsStateLayout(std::int32_t rows, const BandsCode& values)
      : coefficients(floats_in_lines(3 * static_cast<std::size_t>(rows))),
        stride(static_cast<std::size_t>(values.row_stride())),
        floats(floats_in_lines(coefficients + static_cast<std::size_t>(rows) * stride)) {}
};

}  // namespace kvspan
