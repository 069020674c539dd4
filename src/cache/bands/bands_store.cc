// SPDX-License-Identifier: Apache-2.0
#include "cache/bands/bands_store.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/byte_stream.h"
#include "base/expect.h"
#include "base/fail.h"
#include "cache/sole_owner.h"

namespace kvspan {

void BandsStore::append(std::int32_t position, const std::int8_t* codes, const std::int8_t* gains,
                        std::uint16_t escaped, const BFloat16* residuals) {
  KVSPAN_EXPECT(has_residuals() == (residuals != nullptr), "norms where they are kept");
  std::vector<std::uint8_t> tile(code_->layout().tile_bytes());
  code_->layout().pack(codes, kBandTokens, static_cast<std::size_t>(code_->places()), tile.data());
  append_packed(position, tile.data(), gains, escaped, residuals);
}

void BandsStore::append_packed(std::int32_t position, const std::uint8_t* tile,
                               const std::int8_t* gains, std::uint16_t escaped,
                               const BFloat16* norms) {
  KVSPAN_EXPECT(tiles_ == 0 ? position % kTileTokens == 0 : position == next_position(),
                "tiles follow each other, the first at a multiple of 16");
  const std::size_t tile_bytes = code_->layout().tile_bytes();
  const std::int32_t place = tiles_ % kBlockTiles;
  if (place == 0) {
    Block block{
        std::make_shared<Buffer>(tile_bytes * kBlockTiles, MemoryKind::kCoefficients, ledger_),
        std::make_shared<Buffer>(kGainBytes, MemoryKind::kScales, ledger_), nullptr};
    block.find();
    if (has_residuals()) {
      block.norms = std::make_shared<Buffer>(tile_norm_bytes() * kBlockTiles,
                                             MemoryKind::kPositions, ledger_);
    }
    blocks_.push_back(std::move(block));
  } else {
    make_sole_owner(blocks_.back().payload, ledger_);
    blocks_.back().find();
    make_sole_owner(blocks_.back().gains, ledger_);
    blocks_.back().find();
    if (has_residuals()) make_sole_owner(blocks_.back().norms, ledger_);
  }
  Block& block = blocks_.back();
  std::memcpy(block.payload->data() + static_cast<std::size_t>(place) * tile_bytes, tile,
              tile_bytes);
  std::memcpy(block.gains->as<std::int8_t>() + place * kTileTokens, gains, kBandTokens);
  std::memcpy(block.gains->as<std::int8_t>() + kBlockTokens +
                  static_cast<std::size_t>(place) * sizeof(std::uint16_t),
              &escaped, sizeof(escaped));
  if (has_residuals()) {
    std::memcpy(block.norms->data() + static_cast<std::size_t>(place) * tile_norm_bytes(), norms,
                tile_norm_bytes());
  }
  if (tiles_ == 0) first_position_ = position;
  ++tiles_;
}

void BandsStore::save(ByteWriter& out, std::vector<SavedRun>* runs) const {
  out.put(code_->checksum());
  out.put(first_position_);
  out.put(tiles_);
  for (std::int32_t i = 0; i < tiles_; ++i) {
    const std::size_t start = out.written();
    const Block& block = blocks_[static_cast<std::size_t>(i / kBlockTiles)];
    const std::size_t bytes = code_->layout().tile_bytes();
    out.put_bytes(
        {block.payload->data() + static_cast<std::size_t>(i % kBlockTiles) * bytes, bytes});
    out.put_all(std::span<const std::int8_t>(gains(i), kBandTokens));
    out.put(escaped(i));
    if (has_residuals()) {
      out.put_bytes({reinterpret_cast<const std::byte*>(norms(i)), tile_norm_bytes()});
    }
    if (runs == nullptr) continue;
    runs->push_back({start, out.written() - start, first_position_ + (i + 1) * kTileTokens});
  }
}

Status BandsStore::load(ByteReader& in) {
  KVSPAN_TRY(const auto checksum, in.get<std::uint64_t>("checksum of a bands code"));
  if (checksum != code_->checksum()) {
    return in.wrong("checksum of a bands code", sizeof(checksum), checksum,
                    "that of this recipe and calibration");
  }
  KVSPAN_TRY(const auto first, in.get<std::int32_t>("first position of bands"));
  KVSPAN_TRY(const auto tiles, in.get<std::int32_t>("tiles of bands"));
  constexpr std::int32_t kMost = 1 << 26;
  if (first < 0 || first % kTileTokens != 0 || first / kTileTokens > kMost) {
    return in.wrong("first position of bands", 2 * sizeof(first), first, "a multiple of 16");
  }
  if (tiles < 0 || tiles > kMost) {
    return in.wrong("tiles of bands", sizeof(tiles), tiles, fmt::format("0 to {}", kMost));
  }
  BandsStore loaded(code_, ledger_, has_residuals());
  std::array<std::int8_t, kBandTokens> token_gains;
  std::vector<BFloat16> token_norms(tile_norm_bytes() / sizeof(BFloat16));
  for (std::int32_t i = 0; i < tiles; ++i) {
    KVSPAN_TRY(const auto tile, in.get_bytes("a tile of bands", code_->layout().tile_bytes()));
    KVSPAN_CHECK_OK(in.get_all("gains of a tile", std::span<std::int8_t>(token_gains)));
    KVSPAN_TRY(const auto mask, in.get<std::uint16_t>("escapes of a tile"));
    KVSPAN_TRY(const auto bytes, in.get_bytes("residual norms of a tile", tile_norm_bytes()));
    if (!bytes.empty()) std::memcpy(token_norms.data(), bytes.data(), bytes.size());
    for (const BFloat16 norm : token_norms) {
      if (!(to_float(norm) >= 0.0f)) {
        return in.wrong("residual norms of a tile", bytes.size(), to_float(norm), "0 or more");
      }
    }
    loaded.append_packed(first + i * kTileTokens,
                         reinterpret_cast<const std::uint8_t*>(tile.data()), token_gains.data(),
                         mask, token_norms.data());
  }
  loaded.first_position_ = first;
  *this = std::move(loaded);
  return {};
}

std::int32_t BandsStore::forget_before(std::int32_t position) {
  const std::int32_t whole = std::max(0, position - first_position_) / kBlockTokens;
  const std::int32_t blocks = std::min(whole, std::max(0, tiles_ - 1) / kBlockTiles);
  if (blocks == 0) return 0;
  blocks_.erase(blocks_.begin(), blocks_.begin() + blocks);
  tiles_ -= blocks * kBlockTiles;
  first_position_ += blocks * kBlockTokens;
  return first_position_;
}

void BandsStore::truncate(std::int32_t tiles) noexcept {
  tiles_ = std::min(tiles_, tiles);
  blocks_.resize(static_cast<std::size_t>((tiles_ + kBlockTiles - 1) / kBlockTiles));
}

void BandsStore::unpack(std::int32_t tile, std::int8_t* codes) const noexcept {
  code_->layout().unpack(packed(tile), codes);
}

void BandsStore::ask_for(std::int32_t tile) const noexcept {
  if (tile >= tiles_) return;
  const std::size_t bytes = code_->layout().tile_bytes();
  const std::uint8_t* const from = packed(tile);
  for (std::size_t i = 0; i < bytes; i += 64) __builtin_prefetch(from + i, 0, 2);
  if (tile % kBlockTiles != 0) return;
  const std::int8_t* const gains = block_of(tile).gain_codes;
  __builtin_prefetch(gains, 0, 2);
  __builtin_prefetch(gains + kGainBytes - 1, 0, 2);
}

const BFloat16* BandsStore::norms(std::int32_t tile) const noexcept {
  return block_of(tile).norms->as<BFloat16>() + tile % kBlockTiles * kTileTokens * residuals_;
}

std::uint16_t BandsStore::escaped(std::int32_t tile) const noexcept {
  std::uint16_t bits = 0;
  std::memcpy(&bits,
              block_of(tile).gain_codes + kBlockTokens +
                  static_cast<std::size_t>(tile % kBlockTiles) * sizeof(std::uint16_t),
              sizeof(bits));
  return bits;
}

void BandsStore::coefficients(std::int32_t token, float* c) const {
  const std::int32_t tile = token / kTileTokens, t = token % kTileTokens;
  std::vector<std::int8_t> quads(code_->layout().unpacked_bytes());
  unpack(tile, quads.data());
  std::vector<std::int8_t> codes(static_cast<std::size_t>(code_->places()));
  for (std::size_t i = 0; i < codes.size(); ++i) {
    codes[i] =
        quads[i / kBandQuad * kBandCodes + static_cast<std::size_t>(t) * kBandQuad + i % kBandQuad];
  }
  code_->decode(codes.data(), gains(tile)[t], c);
}

std::size_t BandsStore::payload_bytes() const noexcept {
  std::size_t sum = 0;
  for (const Block& block : blocks_) sum += block.payload->bytes();
  return sum;
}

std::size_t BandsStore::gain_bytes() const noexcept {
  std::size_t sum = 0;
  for (const Block& block : blocks_) sum += block.gains->bytes();
  return sum;
}

std::size_t BandsStore::residual_bytes() const noexcept {
  std::size_t sum = 0;
  for (const Block& block : blocks_) sum += has_residuals() ? block.norms->bytes() : 0;
  return sum;
}

}  // namespace kvspan
