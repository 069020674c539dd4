// SPDX-License-Identifier: Apache-2.0
#include "cache/bands_store.h"

#include <array>
#include <cstring>
#include <utility>

#include "base/byte_stream.h"
#include "base/expect.h"
#include "base/fail.h"
#include "cache/sole_owner.h"

namespace kvspan {

void BandsStore::append(std::int32_t position, const std::int8_t* codes, const std::int8_t* gains,
                        std::uint16_t escaped) {
  std::vector<std::uint8_t> tile(code_->layout().tile_bytes());
  code_->layout().pack(codes, kBandTokens, static_cast<std::size_t>(code_->places()), tile.data());
  append_packed(position, tile.data(), gains, escaped);
}

void BandsStore::append_packed(std::int32_t position, const std::uint8_t* tile,
                               const std::int8_t* gains, std::uint16_t escaped) {
  KVSPAN_EXPECT(tiles_ == 0 ? position % kTileTokens == 0 : position == next_position(),
                "tiles follow each other, the first at a multiple of 16");
  const std::size_t tile_bytes = code_->layout().tile_bytes();
  const std::int32_t place = tiles_ % kBlockTiles;
  if (place == 0) {
    Block block{
        std::make_shared<Buffer>(tile_bytes * kBlockTiles, MemoryKind::kCoefficients, ledger_),
        std::make_shared<Buffer>(kGainBytes, MemoryKind::kScales, ledger_)};
    blocks_.push_back(std::move(block));
  } else {
    make_sole_owner(blocks_.back().payload, ledger_);
    make_sole_owner(blocks_.back().gains, ledger_);
  }
  Block& block = blocks_.back();
  std::memcpy(block.payload->data() + static_cast<std::size_t>(place) * tile_bytes, tile,
              tile_bytes);
  std::memcpy(block.gains->as<std::int8_t>() + place * kTileTokens, gains, kBandTokens);
  std::memcpy(block.gains->as<std::int8_t>() + kBlockTokens +
                  static_cast<std::size_t>(place) * sizeof(std::uint16_t),
              &escaped, sizeof(escaped));
  if (tiles_ == 0) first_position_ = position;
  ++tiles_;
}

void BandsStore::save(ByteWriter& out) const {
  out.put(code_->checksum());
  out.put(first_position_);
  out.put(tiles_);
  for (std::int32_t i = 0; i < tiles_; ++i) {
    const Block& block = blocks_[static_cast<std::size_t>(i / kBlockTiles)];
    const std::size_t bytes = code_->layout().tile_bytes();
    out.put_bytes(
        {block.payload->data() + static_cast<std::size_t>(i % kBlockTiles) * bytes, bytes});
    out.put_all(std::span<const std::int8_t>(gains(i), kBandTokens));
    out.put(escaped(i));
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
  BandsStore loaded(code_, ledger_);
  std::array<std::int8_t, kBandTokens> token_gains;
  for (std::int32_t i = 0; i < tiles; ++i) {
    KVSPAN_TRY(const auto tile, in.get_bytes("a tile of bands", code_->layout().tile_bytes()));
    KVSPAN_CHECK_OK(in.get_all("gains of a tile", std::span<std::int8_t>(token_gains)));
    KVSPAN_TRY(const auto mask, in.get<std::uint16_t>("escapes of a tile"));
    loaded.append_packed(first + i * kTileTokens,
                         reinterpret_cast<const std::uint8_t*>(tile.data()), token_gains.data(),
                         mask);
  }
  loaded.first_position_ = first;
  *this = std::move(loaded);
  return {};
}

void BandsStore::clear() noexcept {
  blocks_.clear();
  tiles_ = 0;
}

void BandsStore::unpack(std::int32_t tile, std::int8_t* codes) const noexcept {
  const BandsLayout& layout = code_->layout();
  const Block& block = blocks_[static_cast<std::size_t>(tile / kBlockTiles)];
  layout.unpack(block.payload->as<std::uint8_t>() +
                    static_cast<std::size_t>(tile % kBlockTiles) * layout.tile_bytes(),
                codes);
}

const std::int8_t* BandsStore::gains(std::int32_t tile) const noexcept {
  return blocks_[static_cast<std::size_t>(tile / kBlockTiles)].gains->as<std::int8_t>() +
         tile % kBlockTiles * kTileTokens;
}

std::uint16_t BandsStore::escaped(std::int32_t tile) const noexcept {
  std::uint16_t bits = 0;
  std::memcpy(&bits,
              blocks_[static_cast<std::size_t>(tile / kBlockTiles)].gains->as<std::int8_t>() +
                  kBlockTokens +
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

}  // namespace kvspan
