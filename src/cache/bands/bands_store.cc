// SPDX-License-Identifier: Apache-2.0
#include "cache/bands/bands_store.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
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
  const std::int32_t in_short = tiles_ - long_tiles();  // below 0: the last long block has room
  if (joins_ && in_short >= 0 && in_short + std::max(coming_, 1) >= kLongTiles) lengthen();
  if (tiles_ == block_tiles()) short_.push_back(new_block(kShortTiles));
  Block& last = short_.empty() ? long_.back() : short_.back();
  make_sole_owner(last.memory, ledger_);
  last.find();
  const Place at = place(tiles_);
  write_tile(last.memory->data(), static_cast<std::int32_t>(at.tiles),
             static_cast<std::int32_t>(at.tile), tile, gains, escaped, norms);
  if (tiles_ == 0) first_position_ = position;
  ++tiles_;
  coming_ = std::max(coming_ - 1, 0);
}

BandsStore::Block BandsStore::new_block(std::int32_t tiles) const {
  return Block(std::make_shared<Buffer>(block_bytes(static_cast<std::size_t>(tiles)),
                                        MemoryKind::kCoefficients, ledger_));
}

void BandsStore::write_tile(std::byte* block, std::int32_t tiles, std::int32_t i,
                            const std::uint8_t* tile, const std::int8_t* gains,
                            std::uint16_t escaped, const BFloat16* norms) const {
  const auto n = static_cast<std::size_t>(tiles), at = static_cast<std::size_t>(i);
  const std::size_t tile_bytes = code_->layout().tile_bytes();
  std::memcpy(block + at * tile_bytes, tile, tile_bytes);
  std::memcpy(block + gains_at(n) + at * kBandTokens, gains, kBandTokens);
  std::memcpy(block + escapes_at(n) + at * sizeof(escaped), &escaped, sizeof(escaped));
  if (has_residuals()) {
    std::memcpy(block + norms_at(n) + at * tile_norm_bytes(), norms, tile_norm_bytes());
  }
}

BandsStore::Block BandsStore::copied(std::int32_t first, std::int32_t tiles) const {
  Block block = new_block(tiles);
  for (std::int32_t i = 0; i < tiles && first + i < tiles_; ++i) {
    const std::int32_t from = first + i;
    write_tile(block.memory->data(), tiles, i, packed(from), gains(from), escaped(from),
               has_residuals() ? norms(from) : nullptr);
  }
  return block;
}

// The first short blocks become a long one, which may have room. Where memory is short they stay as
// they are.
void BandsStore::lengthen() {
  try {
    const auto whole = static_cast<std::ptrdiff_t>(short_.size());
    long_.push_back(copied(long_tiles(), kLongTiles));
    short_.erase(short_.begin(), short_.begin() + std::min<std::ptrdiff_t>(whole, kLongTiles / kShortTiles));
  } catch (const std::bad_alloc&) {
  }
}

void BandsStore::save(ByteWriter& out, std::vector<SavedRun>* runs) const {
  out.put(code_->checksum());
  out.put(empty() ? 0 : first_position_);
  out.put(tiles_);
  for (std::int32_t i = 0; i < tiles_; ++i) {
    const std::size_t start = out.written();
    out.put_bytes(
        {reinterpret_cast<const std::byte*>(packed(i)), code_->layout().tile_bytes()});
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
  loaded.expect(tiles);
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
  constexpr std::int32_t kShortTokens = kShortTiles * kTileTokens;
  const std::int32_t whole = std::max(0, position - first_position_) / kShortTokens;
  const std::int32_t blocks = std::min(whole, std::max(0, tiles_ - 1) / kShortTiles);
  if (blocks == 0) return 0;
  std::vector<Block> all;
  for (std::int32_t i = 0; i < long_tiles() && i < tiles_; i += kShortTiles) {
    all.push_back(copied(i, kShortTiles));
  }
  all.insert(all.end(), short_.begin(), short_.end());
  long_.clear();
  short_ = std::move(all);
  joins_ = false;
  short_.erase(short_.begin(), short_.begin() + blocks);
  tiles_ -= blocks * kShortTiles;
  first_position_ += blocks * kShortTokens;
  return first_position_;
}

void BandsStore::truncate(std::int32_t tiles) noexcept {
  tiles_ = std::min(tiles_, tiles);
  coming_ = 0;
  const auto keep = [](std::vector<Block>& blocks, std::int32_t used, std::int32_t each) {
    const std::int32_t count = (std::max(0, used) + each - 1) / each;
    if (count < static_cast<std::int32_t>(blocks.size())) {
      blocks.erase(blocks.begin() + count, blocks.end());
    }
  };
  keep(short_, tiles_ - long_tiles(), kShortTiles);
  keep(long_, tiles_, kLongTiles);
}

void BandsStore::unpack(std::int32_t tile, std::int8_t* codes) const noexcept {
  code_->layout().unpack(packed(tile), codes);
}

void BandsStore::ask_for(std::int32_t tile) const noexcept {
  if (tile >= tiles_) return;
  const std::size_t bytes = code_->layout().tile_bytes();
  const std::uint8_t* const from = packed(tile);
  for (std::size_t i = 0; i < bytes; i += 64) __builtin_prefetch(from + i, 0, 2);
  const Place at = place(tile);
  if (at.tile % kShortTiles != 0) return;
  __builtin_prefetch(gains(tile), 0, 2);
  __builtin_prefetch(at.block + escapes_at(at.tiles) + at.tile * sizeof(std::uint16_t), 0, 2);
}

const BFloat16* BandsStore::norms(std::int32_t tile) const noexcept {
  const Place at = place(tile);
  return reinterpret_cast<const BFloat16*>(at.block + norms_at(at.tiles) +
                                           at.tile * tile_norm_bytes());
}

std::uint16_t BandsStore::escaped(std::int32_t tile) const noexcept {
  const Place at = place(tile);
  std::uint16_t bits = 0;
  std::memcpy(&bits, at.block + escapes_at(at.tiles) + at.tile * sizeof(bits), sizeof(bits));
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
  return code_ ? gains_at(static_cast<std::size_t>(block_tiles())) : 0;
}

std::size_t BandsStore::gain_bytes() const noexcept {
  if (!code_) return 0;
  const std::size_t all = long_.size() * Buffer::allocated_for(block_bytes(kLongTiles)) +
                          short_.size() * Buffer::allocated_for(block_bytes(kShortTiles));
  return all - payload_bytes() - residual_bytes();
}

std::size_t BandsStore::residual_bytes() const noexcept {
  return static_cast<std::size_t>(block_tiles()) * tile_norm_bytes();
}

}  // namespace kvspan
