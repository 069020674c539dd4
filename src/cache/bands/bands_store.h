// SPDX-License-Identifier: Apache-2.0
// The tokens of a group that are coded by bands: consecutive positions in tiles of 16, packed
// (codec/bands/bands_pack.h), a gain for each token. Grown in blocks of 64 tokens, four of which
// become one when they are full: what the C library and the sharing of a block take beside it is
// some hundredths of a short one. A store that forgets old tokens has short ones only. Tokens that are
// kept exact elsewhere (escapes) keep their place here and are marked: readers leave them out. For
// certificates each token also keeps how far its rows are from those that were coded, 2 bytes a
// side and head. On the ledger all of it is MemoryKind::kCoefficients; the three are told apart by
// payload_bytes(), gain_bytes() and residual_bytes().
// Copies share memory; whoever writes first copies the block. Where layers are coded together, a code of each has
// its own rows of B and all have the same layout: stores of those layers hold the very same tiles (share), which one of
// them adds to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/half.h"
#include "base/memory.h"
#include "cache/bands/bands_code.h"
#include "cache/state_stream.h"
#include "kvspan/saved_cache.h"

namespace kvspan {

class ByteReader;
class ByteWriter;

class BandsStore {
 public:
  static constexpr std::int32_t kTileTokens = static_cast<std::int32_t>(kBandTokens);
  static constexpr std::int32_t kShortTiles = 4;
  static constexpr std::int32_t kLongTiles = 4 * kShortTiles;

  BandsStore() = default;
  BandsStore(std::shared_ptr<const BandsCode> code, std::shared_ptr<Ledger> ledger,
             bool residuals = false)
      : code_(std::move(code)),
        ledger_(std::move(ledger)),
        residuals_(residuals ? residual_norms(*code_) : 0) {}
  BandsStore(const BandsStore& other)
      : code_(other.code_),
        ledger_(other.ledger_),
        residuals_(other.residuals_),
        tiles_(std::make_shared<Tiles>(*other.tiles_)) {}
  BandsStore(BandsStore&&) noexcept = default;
  BandsStore& operator=(BandsStore&&) noexcept = default;
  BandsStore& operator=(const BandsStore& other) { return *this = BandsStore(other); }
  // Holds the tiles of another store from now on, whatever happens to them there, read with its own code. That of the
  // other has the same layout.
  void share(const BandsStore& other) noexcept { tiles_ = other.tiles_; }

  const BandsCode& code() const noexcept { return *code_; }
  const std::shared_ptr<const BandsCode>& shared_code() const noexcept { return code_; }
  bool empty() const noexcept { return tiles() == 0; }
  std::int32_t tiles() const noexcept { return tiles_->count; }
  std::int32_t tokens() const noexcept { return tiles() * kTileTokens; }
  std::int32_t first_position() const noexcept { return tiles_->first_position; }
  std::int32_t next_position() const noexcept { return first_position() + tokens(); }

  // Norms of a token where they are kept (cache/bands/bands_residuals.h): |k - k^| of each head,
  // then |v
  // - v^| of each head, of the sides that the code has.
  static std::int32_t residual_norms(const BandsCode& code) noexcept {
    return code.heads() * ((code.key_dim() > 0 ? 1 : 0) + (code.value_dim() > 0 ? 1 : 0));
  }
  bool has_residuals() const noexcept { return residuals_ > 0; }
  float key_residual(std::int32_t head, std::int32_t token) const noexcept {
    return residual(head, token);
  }
  float value_residual(std::int32_t head, std::int32_t token) const noexcept {
    return residual(residuals_ - code_->heads() + head, token);
  }

  // Adds a tile: codes [16, places], gains [16], the tokens kept elsewhere as bits of `escaped`,
  // and [16, residual_norms] where norms are kept.
  // The first tile says at which position (a multiple of 16) the store begins. Throws
  // std::bad_alloc, and then holds what it held.
  void append(std::int32_t position, const std::int8_t* codes, const std::int8_t* gains,
              std::uint16_t escaped, const BFloat16* residuals = nullptr);
  // Tells that `tiles` tiles will be appended next, so that a long block is allocated at once.
  void expect(std::int32_t tiles) noexcept { tiles_->coming = tiles; }
  // Forgets tokens before `position`, in whole blocks of 64 but the last, which tells where the next
  // tile goes. One beyond the last token forgotten, now or before; 0: none. Throws std::bad_alloc,
  // and then holds what it held.
  std::int32_t forget_before(std::int32_t position);
  // Forgets all but the first `tiles` tiles.
  void truncate(std::int32_t tiles) noexcept;

  // Codes of a tile as kernels read them: [quads][16][4].
  void unpack(std::int32_t tile, std::int8_t* codes) const noexcept;
  // The same; between() is called some times on the way.
  template <class Between>
  void unpack(std::int32_t tile, std::int8_t* codes, const Between& between) const noexcept {
    code_->layout().unpack(packed(tile), codes, between);
  }
  // Asks memory for a tile that will be unpacked soon; none where there is no such tile.
  void ask_for(std::int32_t tile) const noexcept;
  const std::int8_t* gains(std::int32_t tile) const noexcept {
    const Place at = place(tile);
    return reinterpret_cast<const std::int8_t*>(at.block + gains_at(at.tiles)) + at.tile * kTileTokens;
  }
  std::uint16_t escaped(std::int32_t tile) const noexcept;
  // c^ [places] of one token.
  void coefficients(std::int32_t token, float* c) const;

  // docs/reference/formats/cache.md. Loading needs the same code, which is known by its checksum,
  // and replaces what is held only when all of it could be read. What is loaded has the same blocks.
  void save(ByteWriter& out, std::vector<SavedRun>* runs = nullptr) const;
  Status load(ByteReader& in, std::uint32_t version = kCacheVersion);

  // Together all that its blocks take; what rounds them up to whole cache lines counts as gains.
  std::size_t payload_bytes() const noexcept;
  std::size_t gain_bytes() const noexcept;
  std::size_t residual_bytes() const noexcept;

 private:
  // n tiles in one piece of memory: [n][tile_bytes] packed, [n][16] gains, [n] uint16 of escapes, and
  // [n][16][residuals_] norms where they are kept.
  struct Block {
    std::shared_ptr<Buffer> memory;
    // Its beginning, so that readers need not go through objects in memory far apart.
    const std::uint8_t* begin = nullptr;
    explicit Block(std::shared_ptr<Buffer> made) : memory(std::move(made)) { find(); }
    void find() noexcept { begin = memory->as<std::uint8_t>(); }
  };
  // All that the tiles are held in.
  struct Tiles {
    std::vector<Block> longs, shorts;  // those of the long blocks come first
    bool joins = true;
    std::int32_t coming = 0;
    std::int32_t first_position = 0;
    std::int32_t count = 0;
  };
  // Where a tile is: number `tile` of the `tiles` tiles of a block.
  struct Place {
    const std::uint8_t* block;
    std::size_t tile, tiles;
  };
  Place place(std::int32_t tile) const noexcept {
    const std::int32_t rest = tile - long_tiles();
    const std::int32_t tiles = rest < 0 ? kLongTiles : kShortTiles, number = rest < 0 ? tile : rest;
    const std::vector<Block>& blocks = rest < 0 ? tiles_->longs : tiles_->shorts;
    return {blocks[static_cast<std::size_t>(number / tiles)].begin,
            static_cast<std::size_t>(number % tiles), static_cast<std::size_t>(tiles)};
  }
  std::int32_t long_tiles() const noexcept {
    return static_cast<std::int32_t>(tiles_->longs.size()) * kLongTiles;
  }
  std::int32_t block_tiles() const noexcept {  // that the blocks have room for
    return long_tiles() + static_cast<std::int32_t>(tiles_->shorts.size()) * kShortTiles;
  }
  const std::uint8_t* packed(std::int32_t tile) const noexcept {
    const Place at = place(tile);
    return at.block + at.tile * code_->layout().tile_bytes();
  }
  void append_packed(std::int32_t position, const std::uint8_t* tile, const std::int8_t* gains,
                     std::uint16_t escaped, const BFloat16* norms);
  Block new_block(std::int32_t tiles) const;
  // Writes tile i of a block that has `tiles` tiles.
  void write_tile(std::byte* block, std::int32_t tiles, std::int32_t i, const std::uint8_t* tile,
                  const std::int8_t* gains, std::uint16_t escaped, const BFloat16* norms) const;
  // The tiles first .. first + tiles - 1, as far as there are such.
  Block copied(std::int32_t first, std::int32_t tiles) const;
  void lengthen();
  const BFloat16* norms(std::int32_t tile) const noexcept;
  float residual(std::int32_t index, std::int32_t token) const noexcept {
    return to_float(norms(token / kTileTokens)[token % kTileTokens * residuals_ + index]);
  }
  std::size_t tile_norm_bytes() const noexcept {
    return kBandTokens * static_cast<std::size_t>(residuals_) * sizeof(BFloat16);
  }
  // Byte offsets in a block of `tiles` tiles; the last one is the size of the block.
  std::size_t gains_at(std::size_t tiles) const noexcept {
    return tiles * code_->layout().tile_bytes();
  }
  std::size_t escapes_at(std::size_t tiles) const noexcept {
    return gains_at(tiles) + tiles * kBandTokens;
  }
  std::size_t norms_at(std::size_t tiles) const noexcept {
    return escapes_at(tiles) + tiles * sizeof(std::uint16_t);
  }
  std::size_t block_bytes(std::size_t tiles) const noexcept {
    return norms_at(tiles) + tiles * tile_norm_bytes();
  }

  std::shared_ptr<const BandsCode> code_;
  std::shared_ptr<Ledger> ledger_;
  std::int32_t residuals_ = 0;  // norms of a token
  std::shared_ptr<Tiles> tiles_ = std::make_shared<Tiles>();
};

}  // namespace kvspan
