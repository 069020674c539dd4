// SPDX-License-Identifier: Apache-2.0
#include "cuda/bands/code_pages.h"

#include <algorithm>
#include <cstring>

#include "codec/bands/bands_pack.h"
#include "cuda/attend_constants.h"
#include "cuda/row_pages.h"

namespace kvspan::cuda {
namespace {

// The four digits of a quad of one token, one in each byte, in their chunk. The chunk was zeros.
void put_digits(int width, std::uint32_t digits, int token, int quad, std::byte* chunk) {
  if (width == 2) {
    // Bits 2 f of one byte.
    chunk[16 * token + quad] = static_cast<std::byte>(digits | digits >> 6 | digits >> 12 | digits >> 18);
    return;
  }
  for (int f = 0; f < 4; ++f) {
    const DigitField field = field_of(1, token, 4 * quad + f);
    chunk[4 * field.word + field.shift / 8] |= static_cast<std::byte>((digits >> (8 * f) & 1u) << (field.shift % 8));
  }
}
std::uint32_t get_digits(int width, const std::byte* chunk, int token, int quad) {
  if (width == 2) {
    const auto byte = static_cast<std::uint32_t>(chunk[16 * token + quad]);
    return (byte | byte << 6 | byte << 12 | byte << 18) & 0x03030303u;
  }
  std::uint32_t digits = 0;
  for (int f = 0; f < 4; ++f) {
    const DigitField field = field_of(1, token, 4 * quad + f);
    digits |= (static_cast<std::uint32_t>(chunk[4 * field.word + field.shift / 8]) >> (field.shift % 8) & 1u) << (8 * f);
  }
  return digits;
}

}  // namespace

CodePages::CodePages(const BandsLayout& layout, int chunks)
    : tiles_(layout, chunks), places_(layout.quads() * kBandQuad), stored_(layout.stored()) {}

std::size_t CodePages::page_bytes() const noexcept {
  return tiles_.tile_bytes() * (kPageTokens / kTileTokens);
}

// Calls use(tile, token of the tile, number of the token in the group's) for codes that are held.
template <class Byte, class Use>
void CodePages::each_token(Byte* tiles, const LayerTokens& held, std::int32_t page,
                           const Use& use) const {
  const PositionRange here{page * kPageTokens, (page + 1) * kPageTokens}, codes = held.codes();
  const PositionRange met = shared_of(codes, here);
  for (std::int32_t p = met.first; p < met.last; ++p) {
    const auto tile = static_cast<std::size_t>((p - here.first) / kTileTokens);
    use(tiles + tile * tiles_.tile_bytes(), (p - here.first) % kTileTokens,
        static_cast<std::size_t>(p - codes.first));
  }
}

// Calls use(width, shift, offset of the chunk, quad within it) for the digits of a quad.
template <class Use>
void CodePages::each_digit(std::size_t quad, const Use& use) const {
  for (const std::int16_t at : tiles_.of_quads()[quad]) {
    if (at < 0) break;
    const int chunk = at / kChunkQuads;
    use(tiles_.widths()[static_cast<std::size_t>(chunk)], tiles_.digits()[static_cast<std::size_t>(at)].shift,
        tiles_.offset(chunk) * 4, at % kChunkQuads);
  }
}

std::vector<std::byte> CodePages::page_of(const LayerTokens& from, std::size_t group,
                                          std::int32_t page) const {
  std::vector<std::byte> tiles(page_bytes());
  const GroupTokens& tokens = from.groups[group];
  each_token(tiles.data(), from, page, [&](std::byte* tile, int token, std::size_t number) {
    const std::int8_t* const codes = tokens.codes.data() + number * places_;
    for (std::size_t q = 0; q < places_ / 4; ++q) {
      std::uint32_t unsigned_codes = 0;
      for (std::size_t p = 4 * q; p < std::min(4 * q + 4, stored_); ++p) {
        unsigned_codes |= static_cast<std::uint32_t>(codes[p] + tiles_.middle(q)) << (8 * (p % 4));
      }
      each_digit(q, [&](int width, int shift, int offset, int quad) {
        const std::uint32_t each = (1u << width) - 1u;
        put_digits(width, unsigned_codes >> shift & each * 0x01010101u, token, quad, tile + offset);
      });
    }
    tiles_.put_gain(tile, token, tokens.gains[number]);
  });
  return tiles;
}

void CodePages::read_page(std::span<const std::byte> tiles, std::int32_t page, std::size_t group,
                          LayerTokens& to) const {
  GroupTokens& tokens = to.groups[group];
  each_token(tiles.data(), to, page, [&](const std::byte* tile, int token, std::size_t number) {
    std::int8_t* const codes = tokens.codes.data() + number * places_;
    for (std::size_t q = 0; q < places_ / 4; ++q) {
      std::uint32_t unsigned_codes = 0;
      each_digit(q, [&](int width, int shift, int offset, int quad) {
        unsigned_codes |= get_digits(width, tile + offset, token, quad) << shift;
      });
      for (std::size_t p = 4 * q; p < std::min(4 * q + 4, stored_); ++p) {
        const auto u = static_cast<int>(unsigned_codes >> (8 * (p % 4)) & 0xffu);
        codes[p] = static_cast<std::int8_t>(u - tiles_.middle(q));
      }
    }
    tokens.gains[number] = tiles_.gain(tile, token);
  });
}

}  // namespace kvspan::cuda
