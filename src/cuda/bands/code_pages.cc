// SPDX-License-Identifier: Apache-2.0
#include "cuda/bands/code_pages.h"

#include <algorithm>
#include <cstring>

#include "codec/bands/bands_pack.h"
#include "cuda/attend_constants.h"
#include "cuda/row_pages.h"

namespace kvspan::cuda {
namespace {

std::uint32_t word_at(const std::byte* chunk, int word) {
  std::uint32_t found = 0;
  std::memcpy(&found, chunk + static_cast<std::ptrdiff_t>(word) * 4, sizeof(found));
  return found;
}

void add_bits(std::byte* chunk, const CodeField& field, std::uint32_t bits) {
  const std::uint32_t word = word_at(chunk, field.word) | (bits & ((1u << field.bits) - 1u))
                                                              << field.shift;
  std::memcpy(chunk + static_cast<std::ptrdiff_t>(field.word) * 4, &word, sizeof(word));
}

// What BandsTiles::put and get do, for the first `count` places of a chunk. Many codes go this way:
// their width is known when this is compiled. The chunk was zeros.
template <int kWidth>
void put_codes(const std::int8_t* codes, int token, int count, std::byte* chunk) {
  for (int p = 0; p < count; ++p) {
    const CodeFields fields = fields_of(kWidth, token, p);
    const auto u = static_cast<std::uint32_t>(codes[p] + (1 << (kWidth - 1)));
    add_bits(chunk, fields.low, u);
    if (fields.high.bits > 0) add_bits(chunk, fields.high, u >> fields.low.bits);
  }
}
template <int kWidth>
void get_codes(const std::byte* chunk, int token, int count, std::int8_t* codes) {
  for (int p = 0; p < count; ++p) {
    const CodeFields fields = fields_of(kWidth, token, p);
    std::uint32_t u =
        word_at(chunk, fields.low.word) >> fields.low.shift & ((1u << fields.low.bits) - 1u);
    if (fields.high.bits > 0) {
      u |= (word_at(chunk, fields.high.word) >> fields.high.shift & ((1u << fields.high.bits) - 1u))
           << fields.low.bits;
    }
    codes[p] = static_cast<std::int8_t>(static_cast<int>(u) - (1 << (kWidth - 1)));
  }
}

// Calls use.template operator()<width>().
template <class Use>
void by_width(int width, const Use& use) {
  switch (width) {
    case 1:
      return use.template operator()<1>();
    case 2:
      return use.template operator()<2>();
    case 3:
      return use.template operator()<3>();
    case 4:
      return use.template operator()<4>();
    case 5:
      return use.template operator()<5>();
    case 6:
      return use.template operator()<6>();
    default:
      return use.template operator()<8>();
  }
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

// Calls use.operator()<width>(offset of the chunk, its first place, how many of its places have
// codes).
template <class Use>
void CodePages::each_chunk(const Use& use) const {
  for (std::size_t k = 0; k * kChunkPlaces < stored_; ++k) {
    const std::size_t first = k * kChunkPlaces;
    const int count = static_cast<int>(std::min<std::size_t>(kChunkPlaces, stored_ - first));
    const auto offset = static_cast<std::size_t>(tiles_.offset(static_cast<int>(k))) * 4;
    by_width(tiles_.widths()[k],
             [&]<int kWidth>() { use.template operator()<kWidth>(offset, first, count); });
  }
}

std::vector<std::byte> CodePages::page_of(const LayerTokens& from, std::size_t group,
                                          std::int32_t page) const {
  std::vector<std::byte> tiles(page_bytes());
  const GroupTokens& tokens = from.groups[group];
  each_token(tiles.data(), from, page, [&](std::byte* tile, int token, std::size_t number) {
    each_chunk([&]<int kWidth>(std::size_t offset, std::size_t first, int count) {
      put_codes<kWidth>(tokens.codes.data() + number * places_ + first, token, count,
                        tile + offset);
    });
    tiles_.put_gain(tile, token, tokens.gains[number]);
  });
  return tiles;
}

void CodePages::read_page(std::span<const std::byte> tiles, std::int32_t page, std::size_t group,
                          LayerTokens& to) const {
  GroupTokens& tokens = to.groups[group];
  each_token(tiles.data(), to, page, [&](const std::byte* tile, int token, std::size_t number) {
    each_chunk([&]<int kWidth>(std::size_t offset, std::size_t first, int count) {
      get_codes<kWidth>(tile + offset, token, count,
                        tokens.codes.data() + number * places_ + first);
    });
    tokens.gains[number] = tiles_.gain(tile, token);
  });
}

}  // namespace kvspan::cuda
