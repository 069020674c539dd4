// SPDX-License-Identifier: Apache-2.0
// The tokens of a group that are coded by bands: consecutive positions in tiles of 16, packed
// (codec/bands_pack.h), a gain for each token. Grown in blocks of 64 tokens. Tokens that are kept
// exact elsewhere (escapes) keep their place here and are marked: readers leave them out.
// Copies share memory; whoever writes first copies the block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/memory.h"
#include "cache/bands_code.h"

namespace kvspan {

class ByteReader;
class ByteWriter;

class BandsStore {
 public:
  static constexpr std::int32_t kBlockTiles = 4;
  static constexpr std::int32_t kTileTokens = static_cast<std::int32_t>(kBandTokens);
  static constexpr std::int32_t kBlockTokens = kBlockTiles * kTileTokens;

  BandsStore() = default;
  BandsStore(std::shared_ptr<const BandsCode> code, std::shared_ptr<Ledger> ledger)
      : code_(std::move(code)), ledger_(std::move(ledger)) {}

  const BandsCode& code() const noexcept { return *code_; }
  bool empty() const noexcept { return tiles_ == 0; }
  std::int32_t tiles() const noexcept { return tiles_; }
  std::int32_t tokens() const noexcept { return tiles_ * kTileTokens; }
  std::int32_t first_position() const noexcept { return first_position_; }
  std::int32_t next_position() const noexcept { return first_position_ + tokens(); }

  // Adds a tile: codes [16, places], gains [16], the tokens kept elsewhere as bits of `escaped`.
  // The first tile says at which position (a multiple of 16) the store begins. Throws
  // std::bad_alloc, and then holds what it held.
  void append(std::int32_t position, const std::int8_t* codes, const std::int8_t* gains,
              std::uint16_t escaped);
  void clear() noexcept;

  // Codes of a tile as kernels read them: [quads][16][4].
  void unpack(std::int32_t tile, std::int8_t* codes) const noexcept;
  const std::int8_t* gains(std::int32_t tile) const noexcept;
  std::uint16_t escaped(std::int32_t tile) const noexcept;
  // c^ [places] of one token.
  void coefficients(std::int32_t token, float* c) const;

  // docs/formats/cache.md. Loading needs the same code, which is known by its checksum, and
  // replaces what is held only when all of it could be read.
  void save(ByteWriter& out) const;
  Status load(ByteReader& in);

  std::size_t payload_bytes() const noexcept;
  std::size_t gain_bytes() const noexcept;

 private:
  struct Block {
    std::shared_ptr<Buffer> payload;  // [kBlockTiles][tile_bytes]
    std::shared_ptr<Buffer> gains;    // [64] gains, then [4] uint16 of escapes
  };
  void append_packed(std::int32_t position, const std::uint8_t* tile, const std::int8_t* gains,
                     std::uint16_t escaped);
  static constexpr std::size_t kGainBytes = kBlockTokens + kBlockTiles * sizeof(std::uint16_t);

  std::shared_ptr<const BandsCode> code_;
  std::shared_ptr<Ledger> ledger_;
  std::vector<Block> blocks_;
  std::int32_t first_position_ = 0;
  std::int32_t tiles_ = 0;
};

}  // namespace kvspan
