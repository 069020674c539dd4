// SPDX-License-Identifier: Apache-2.0
// A saved cache cut into pieces: one for each block of 256 tokens, with the bytes of those tokens in all
// layers, and one with the rest (shape, ends at full rank, what was learnt). Pieces are found by
// their content, so caches whose texts begin alike have most pieces in common. The manifest says how
// to put them together (docs/reference/formats/store.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kvspan/result.h"
#include "kvspan/saved_cache.h"

namespace kvspan {

struct Manifest {
  struct Piece {
    std::string key;
    std::uint64_t bytes = 0;
  };
  // Some bytes of the saved cache, the next of one piece.
  struct Run {
    std::uint32_t piece = 0;
    std::uint64_t bytes = 0;
  };
  std::int32_t tokens = 0;         // of the cache
  std::vector<std::string> chain;  // keys of its blocks of tokens
  std::vector<Piece> pieces;
  std::vector<Run> runs;           // all bytes, from the first to the last

  std::vector<std::byte> save() const;
  // kCorruptData on anything that save does not write, and where runs and pieces do not add up.
  static Result<Manifest> load(std::span<const std::byte> bytes);
};

struct CutCache {
  Manifest manifest;  // without its chain
  std::vector<std::vector<std::byte>> pieces;
};
CutCache cut(const SavedCache& saved, std::int32_t tokens, const std::string& identity);

// The bytes of the cache; kCorruptData where a piece is not what the manifest says.
Result<std::vector<std::byte>> join(const Manifest& manifest, const std::string& identity,
                                    std::span<const std::vector<std::byte>> pieces);

// What the key of a block of tokens leads to.
struct IndexEntry {
  std::string manifest;     // its key
  std::int32_t tokens = 0;  // of the cache there: as many as the key's, or more

  std::vector<std::byte> save() const;
  static Result<IndexEntry> load(std::span<const std::byte> bytes);
};

}  // namespace kvspan
