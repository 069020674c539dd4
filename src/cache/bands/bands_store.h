// SPDX-License-Identifier: Apache-2.0
// The tokens of a group that are coded by bands: consecutive positions in tiles of 16, packed
// (codec/bands/bands_pack.h), a gain for each token. Grown in blocks of 64 tokens. Tokens that are
// kept exact elsewhere (escapes) keep their place here and are marked: readers leave them out. For
// certificates each token also keeps how far its rows are from those that were coded, 2 bytes a
// side and head (MemoryKind::kPositions).
// Copies share memory; whoever writes first copies the block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/half.h"
#include "base/memory.h"
#include "cache/bands/bands_code.h"
#include "kvspan/saved_cache.h"

namespace kvspan {

class ByteReader;
class ByteWriter;

class BandsStore {
 public:
  static constexpr std::int32_t kBlockTiles = 4;
  static constexpr std::int32_t kTileTokens = static_cast<std::int32_t>(kBandTokens);
  static constexpr std::int32_t kBlockTokens = kBlockTiles * kTileTokens;

  BandsStore() = default;
  BandsStore(std::shared_ptr<const BandsCode> code, std::shared_ptr<Ledger> ledger,
             bool residuals = false)
      : code_(std::move(code)),
        ledger_(std::move(ledger)),
        residuals_(residuals ? residual_norms(*code_) : 0) {}

  const BandsCode& code() const noexcept { return *code_; }
  const std::shared_ptr<const BandsCode>& shared_code() const noexcept { return code_; }
  bool empty() const noexcept { return tiles_ == 0; }
  std::int32_t tiles() const noexcept { return tiles_; }
  std::int32_t tokens() const noexcept { return tiles_ * kTileTokens; }
  std::int32_t first_position() const noexcept { return first_position_; }
  std::int32_t next_position() const noexcept { return first_position_ + tokens(); }

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
  // Forgets tokens before `position`, in whole blocks but the last, which tells where the next tile
  // goes. One beyond the last token forgotten; 0: none.
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
    return block_of(tile).gain_codes + tile % kBlockTiles * kTileTokens;
  }
  std::uint16_t escaped(std::int32_t tile) const noexcept;
  // c^ [places] of one token.
  void coefficients(std::int32_t token, float* c) const;

  // docs/reference/formats/cache.md. Loading needs the same code, which is known by its checksum,
  // and replaces what is held only when all of it could be read.
  void save(ByteWriter& out, std::vector<SavedRun>* runs = nullptr) const;
  Status load(ByteReader& in);

  std::size_t payload_bytes() const noexcept;
  std::size_t gain_bytes() const noexcept;
  std::size_t residual_bytes() const noexcept;

 private:
  struct Block {
    std::shared_ptr<Buffer> payload;  // [kBlockTiles][tile_bytes]
    std::shared_ptr<Buffer> gains;    // [64] gains, then [4] uint16 of escapes
    std::shared_ptr<Buffer> norms;    // [64, residuals_], where kept
    // Of payload and gains, so that readers need not go through objects in memory far apart.
    const std::uint8_t* packed = nullptr;
    const std::int8_t* gain_codes = nullptr;
    void find() noexcept {
      packed = payload->as<std::uint8_t>();
      gain_codes = gains->as<std::int8_t>();
    }
  };
  const Block& block_of(std::int32_t tile) const noexcept {
    return blocks_[static_cast<std::size_t>(tile / kBlockTiles)];
  }
  const std::uint8_t* packed(std::int32_t tile) const noexcept {
    return block_of(tile).packed +
           static_cast<std::size_t>(tile % kBlockTiles) * code_->layout().tile_bytes();
  }
  void append_packed(std::int32_t position, const std::uint8_t* tile, const std::int8_t* gains,
                     std::uint16_t escaped, const BFloat16* norms);
  const BFloat16* norms(std::int32_t tile) const noexcept;
  float residual(std::int32_t index, std::int32_t token) const noexcept {
    return to_float(norms(token / kTileTokens)[token % kTileTokens * residuals_ + index]);
  }
  std::size_t tile_norm_bytes() const noexcept {
    return kBandTokens * static_cast<std::size_t>(residuals_) * sizeof(BFloat16);
  }
  static constexpr std::size_t kGainBytes = kBlockTokens + kBlockTiles * sizeof(std::uint16_t);

  std::shared_ptr<const BandsCode> code_;
  std::shared_ptr<Ledger> ledger_;
  std::vector<Block> blocks_;
  std::int32_t residuals_ = 0;  // norms of a token
  std::int32_t first_position_ = 0;
  std::int32_t tiles_ = 0;
};

}  // namespace kvspan
