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
  KVSPAN_EXPECT(empty() ? position % kTileTokens == 0 : position == next_position(),
                "tiles follow each other, the first at a multiple of 16");
  Tiles& all = *tiles_;
  const std::int32_t in_short = all.count - long_tiles();  // below 0: the last long block has room
  if (all.joins && in_short >= 0 && in_short + std::max(all.coming, 1) >= kLongTiles) lengthen();
  if (all.count == block_tiles()) all.shorts.push_back(new_block(kShortTiles));
  Block& last = all.shorts.empty() ? all.longs.back() : all.shorts.back();
  make_sole_owner(last.memory, ledger_);
  last.find();
  const Place at = place(all.count);
  write_tile(last.memory->data(), static_cast<std::int32_t>(at.tiles),
             static_cast<std::int32_t>(at.tile), tile, gains, escaped, norms);
  if (all.count == 0) all.first_position = position;
  ++all.count;
  all.coming = std::max(all.coming - 1, 0);
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
  for (std::int32_t i = 0; i < tiles && first + i < tiles_->count; ++i) {
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
    std::vector<Block>& shorts = tiles_->shorts;
    const auto whole = static_cast<std::ptrdiff_t>(shorts.size());
    tiles_->longs.push_back(copied(long_tiles(), kLongTiles));
    shorts.erase(shorts.begin(), shorts.begin() + std::min<std::ptrdiff_t>(whole, kLongTiles / kShortTiles));
  } catch (const std::bad_alloc&) {
  }
}

void BandsStore::save(ByteWriter& out, std::vector<SavedRun>* runs) const {
  out.put(code_->checksum());
  out.put(empty() ? 0 : first_position());
  out.put(tiles());
  out.put(static_cast<std::int32_t>(tiles_->longs.size()));
  out.put(static_cast<std::uint8_t>(tiles_->joins));
  for (std::int32_t i = 0; i < tiles(); ++i) {
    const std::size_t start = out.written();
    out.put_bytes(
        {reinterpret_cast<const std::byte*>(packed(i)), code_->layout().tile_bytes()});
    out.put_all(std::span<const std::int8_t>(gains(i), kBandTokens));
    out.put(escaped(i));
    if (has_residuals()) {
      out.put_bytes({reinterpret_cast<const std::byte*>(norms(i)), tile_norm_bytes()});
    }
    if (runs == nullptr) continue;
    runs->push_back({start, out.written() - start, first_position() + (i + 1) * kTileTokens});
  }
}

Status BandsStore::load(ByteReader& in, std::uint32_t version) {
  KVSPAN_TRY(const auto checksum, in.get<std::uint64_t>("checksum of a bands code"));
  if (checksum != code_->checksum()) {
    return in.wrong("checksum of a bands code", sizeof(checksum), checksum,
                    "that of this recipe and calibration");
  }
  KVSPAN_TRY(const auto first, in.get<std::int32_t>("first position of bands"));
  KVSPAN_TRY(const auto tiles, in.get<std::int32_t>("tiles of bands"));
  constexpr std::int32_t kMost = 1 << 30;  // positions
  if (first < 0 || first % kTileTokens != 0 || first > kMost) {
    return in.wrong("first position of bands", 2 * sizeof(first), first,
                    fmt::format("a multiple of {} up to {}", kTileTokens, kMost));
  }
  if (tiles < 0 || tiles > (kMost - first) / kTileTokens) {
    return in.wrong("tiles of bands", sizeof(tiles), tiles,
                    fmt::format("0 to {}", (kMost - first) / kTileTokens));
  }
  BandsStore loaded(code_, ledger_, has_residuals());
  std::int32_t longs = 0;
  bool joins = true;
  if (version < 4) {
    loaded.expect(tiles);
  } else {
    KVSPAN_TRY(longs, in.get<std::int32_t>("long blocks of bands"));
    if (longs < 0 || longs > (tiles + kLongTiles - 1) / kLongTiles) {
      return in.wrong("long blocks of bands", sizeof(longs), longs, "as many as the tiles need");
    }
    KVSPAN_TRY(const auto joined, in.get<std::uint8_t>("short blocks are joined"));
    if (joined > 1) return in.wrong("short blocks are joined", 1, int{joined}, "0 or 1");
    joins = joined != 0;
    loaded.tiles_->joins = false;
  }
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
    if (i == loaded.block_tiles() && std::cmp_less(loaded.tiles_->longs.size(), longs)) {
      loaded.tiles_->longs.push_back(loaded.new_block(kLongTiles));
    }
    loaded.append_packed(first + i * kTileTokens,
                         reinterpret_cast<const std::uint8_t*>(tile.data()), token_gains.data(),
                         mask, token_norms.data());
  }
  loaded.tiles_->first_position = first;
  loaded.tiles_->joins = joins;
  *this = std::move(loaded);
  return {};
}

std::int32_t BandsStore::forget_before(std::int32_t position) {
  constexpr std::int32_t kShortTokens = kShortTiles * kTileTokens;
  Tiles& held = *tiles_;
  const std::int32_t whole = std::max(0, position - held.first_position) / kShortTokens;
  const std::int32_t blocks = std::min(whole, std::max(0, held.count - 1) / kShortTiles);
  // A caller whose other store had no memory to forget has not heard of what this one did before.
  if (blocks == 0) return held.joins ? 0 : held.first_position;
  std::vector<Block> all;
  for (std::int32_t i = 0; i < long_tiles() && i < held.count; i += kShortTiles) {
    all.push_back(copied(i, kShortTiles));
  }
  all.insert(all.end(), held.shorts.begin(), held.shorts.end());
  held.longs.clear();
  held.shorts = std::move(all);
  held.joins = false;
  held.shorts.erase(held.shorts.begin(), held.shorts.begin() + blocks);
  held.count -= blocks * kShortTiles;
  held.first_position += blocks * kShortTokens;
  return held.first_position;
}

void BandsStore::truncate(std::int32_t tiles) noexcept {
  Tiles& held = *tiles_;
  held.count = std::min(held.count, tiles);
  held.coming = 0;
  const auto keep = [](std::vector<Block>& blocks, std::int32_t used, std::int32_t each) {
    const std::int32_t count = (std::max(0, used) + each - 1) / each;
    if (count < static_cast<std::int32_t>(blocks.size())) {
      blocks.erase(blocks.begin() + count, blocks.end());
    }
  };
  keep(held.shorts, held.count - long_tiles(), kShortTiles);
  keep(held.longs, held.count, kLongTiles);
}

void BandsStore::unpack(std::int32_t tile, std::int8_t* codes) const noexcept {
  code_->layout().unpack(packed(tile), codes);
}

void BandsStore::ask_for(std::int32_t tile) const noexcept {
  if (tile >= tiles()) return;
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
  const std::size_t all = tiles_->longs.size() * Buffer::allocated_for(block_bytes(kLongTiles)) +
                          tiles_->shorts.size() * Buffer::allocated_for(block_bytes(kShortTiles));
  return all - payload_bytes() - residual_bytes();
}

std::size_t BandsStore::residual_bytes() const noexcept {
  return static_cast<std::size_t>(block_tiles()) * tile_norm_bytes();
}

}  // namespace kvspan
