// SPDX-License-Identifier: Apache-2.0
// How a device holds tokens coded by bands: the codes of codec/bands_pack.h in an order that small
// matrix products take as it is.
//
// A tile is 32 tokens. Places of the layout come in chunks of 64, each of one width: that of its
// first place, the widest (a code with `grain=64` wastes nothing by that). A chunk of width w is 64
// w words, in planes. With i = place / 4 and f = place % 4 the planes are
//
//     fields of 2 bits   16 bytes a token: byte i, bits 2 f
//     fields of 4 bits   two such planes: places f = 0, 1 and f = 2, 3; bits 4 (f % 2)
//     fields of 8 bits   four such planes, one for each f
//     fields of 1 bit    8 bytes a token: byte i / 2, bit 2 f + i % 2
//
// and widths are made of planes in this order, lowest bits first:
//
//     1: 1    2: 2    3: 2, 1    4: 4    5: 4, 1    6: 4, 2    8: 8
//
// Planes of 16 bytes a token are what ldmatrix reads: rows as they are give operands with tokens as
// rows, transposed ones (by pairs of bytes) operands with places as rows. A thread meets the four
// tokens of a quad together, token_at(quad, 0..3): one of each eight, so that no bank of shared
// memory is met twice either way. Planes of single bits, too narrow for that instruction, lie quad
// by quad: four words pairs (i / 4), a word for two tokens of the quad, 16 bits for each.
//
// Codes are unsigned: v + 2^(w-1), which stands for step (u - (2^w - 1) / 2). After the chunks come
// the 32 tokens' gains (codec/midrise.h), quad by quad, and one word with a bit for each token that
// is kept exact elsewhere; padded to 16 bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#ifdef __CUDACC__
#define KVSPAN_HOST_DEVICE __host__ __device__
#else
#define KVSPAN_HOST_DEVICE
#endif

namespace kvspan {
class BandsLayout;
}

namespace kvspan::cuda {

inline constexpr int kTileTokens = 32;
inline constexpr int kChunkPlaces = 64;
inline constexpr int kMaxChunks = 24;
inline constexpr int kTileTail = 48;  // bytes of gains, escapes and padding

KVSPAN_HOST_DEVICE constexpr int chunk_words(int width) {
  return 64 * width;
}

// The token that is number b (< 4) of a quad (< 8), and where a token is.
KVSPAN_HOST_DEVICE constexpr int token_at(int quad, int b) {
  return 8 * b + (quad ^ (b % 2 * 4));
}
KVSPAN_HOST_DEVICE constexpr int quad_of(int token) {
  return (token % 8) ^ (token / 8 % 2 * 4);
}
// Of the gains after the codes.
KVSPAN_HOST_DEVICE constexpr int gain_byte(int token) {
  return 4 * quad_of(token) + token / 8;
}

// Where the lowest bits and, for 3, 5 and 6, the upper bits of a code lie in its chunk.
struct CodeField {
  int word, shift, bits;
};
struct CodeFields {
  CodeField low, high;  // high.bits 0: none
};
// token < 32, place < 64.
KVSPAN_HOST_DEVICE constexpr CodeFields fields_of(int width, int token, int place) {
  const int i = place / 4, f = place % 4, b = token / 8;
  const int word = 4 * token + i / 4, byte = i % 4 * 8;
  const int bit_word = 8 * quad_of(token) + i / 4 * 2 + b / 2;
  const int bit = b % 2 * 16 + i % 4 / 2 * 8 + 2 * f + i % 2;
  constexpr int kPlane = 128;
  switch (width) {
    case 1:
      return {{bit_word, bit, 1}, {0, 0, 0}};
    case 2:
      return {{word, byte + 2 * f, 2}, {0, 0, 0}};
    case 3:
      return {{word, byte + 2 * f, 2}, {kPlane + bit_word, bit, 1}};
    case 8:
      return {{f * kPlane + word, byte, 8}, {0, 0, 0}};
    default:
      break;
  }
  const CodeField low{f / 2 * kPlane + word, byte + 4 * (f % 2), 4};
  if (width == 5) return {low, {2 * kPlane + bit_word, bit, 1}};
  if (width == 6) return {low, {2 * kPlane + word, byte + 2 * f, 2}};
  return {low, {0, 0, 0}};
}

// The token that 16 bits of a chunk belong to; `half` counts them from the chunk's beginning.
KVSPAN_HOST_DEVICE constexpr int token_of_half(int width, int half) {
  const int planes = 256 * (width / 2);
  if (half < planes) return half % 256 / 8;
  const int rest = half - planes;
  return token_at(rest / 16, rest % 4);
}

class BandsTiles {
 public:
  BandsTiles() = default;
  // At least so many chunks: more than the layout needs have no codes.
  explicit BandsTiles(const BandsLayout& layout, int chunks = 0);

  int chunks() const noexcept { return static_cast<int>(widths_.size()); }
  std::span<const std::uint8_t> widths() const noexcept { return widths_; }
  // Of the first word of a chunk.
  int offset(int chunk) const noexcept { return offsets_[static_cast<std::size_t>(chunk)]; }
  std::size_t code_bytes() const noexcept { return code_bytes_; }
  std::size_t tile_bytes() const noexcept { return code_bytes_ + kTileTail; }
  bool all_of_width(int width) const noexcept;

  // Plain reading and writing of single codes, two's complement: what kernels are held against, and
  // what saved caches go through.
  void put(std::byte* tile, int token, int place, std::int8_t code) const noexcept;
  std::int8_t get(const std::byte* tile, int token, int place) const noexcept;
  void put_gain(std::byte* tile, int token, std::int8_t gain) const noexcept;
  std::int8_t gain(const std::byte* tile, int token) const noexcept;
  std::uint32_t escaped(const std::byte* tile) const noexcept;

 private:
  std::vector<std::uint8_t> widths_;
  std::vector<int> offsets_;
  std::size_t code_bytes_ = 0;
};

}  // namespace kvspan::cuda
