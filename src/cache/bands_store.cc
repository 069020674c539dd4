// SPDX-License-Identifier: Apache-2.0
#include "cache/bands_store.h"

#include <cstring>
#include <utility>

#include "base/expect.h"
#include "cache/sole_owner.h"

namespace kvspan {

void BandsStore::append(std::int32_t position, const std::int8_t* codes, const std::int8_t* gains,
                        std::uint16_t escaped) {
  KVSPAN_EXPECT(tiles_ == 0 ? position % kTileTokens == 0 : position == next_position(),
                "tiles follow each other, the first at a multiple of 16");
  const BandsLayout& layout = code_->layout();
  const std::int32_t place = tiles_ % kBlockTiles;
  if (place == 0) {
    Block block{std::make_shared<Buffer>(layout.tile_bytes() * kBlockTiles,
                                         MemoryKind::kCoefficients, ledger_),
                std::make_shared<Buffer>(kGainBytes, MemoryKind::kScales, ledger_)};
    blocks_.push_back(std::move(block));
  } else {
    make_sole_owner(blocks_.back().payload, ledger_);
    make_sole_owner(blocks_.back().gains, ledger_);
  }
  Block& block = blocks_.back();
  layout.pack(
      codes, kBandTokens, static_cast<std::size_t>(code_->places()),
      block.payload->as<std::uint8_t>() + static_cast<std::size_t>(place) * layout.tile_bytes());
  std::memcpy(block.gains->as<std::int8_t>() + place * kTileTokens, gains, kBandTokens);
  std::memcpy(block.gains->as<std::int8_t>() + kBlockTokens +
                  static_cast<std::size_t>(place) * sizeof(std::uint16_t),
              &escaped, sizeof(escaped));
  if (tiles_ == 0) first_position_ = position;
  ++tiles_;
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
