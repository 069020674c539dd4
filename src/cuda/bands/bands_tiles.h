// SPDX-License-Identifier: Apache-2.0
// How a device holds tokens coded by bands: the codes of codec/bands/bands_pack.h as digits, in an order
// that small matrix products take as it is.
//
// A code of w bits, unsigned: u = v + 2^(w-1), has w / 2 digits of 2 bits and, where w is odd, one of 1
// bit above them. It stands for step (u - (2^w - 1) / 2), and so each digit d of b bits that lies s bits
// above the lowest stands for 2^s step (d - (2^b - 1) / 2) by itself: kernels know digits alone, whatever
// widths codes have. The four digits at one height of a quad's codes stay together.
//
// A tile is 32 tokens. Places of digits come in chunks of 64, first those of 2 bits, then those of 1 bit,
// both from the highest digits down and within that in the order of quads; places that are left over at
// the end of either are empty. With i = place / 4 and f = place % 4 a chunk has
//
//     digits of 2 bits   16 bytes a token: byte i, bits 2 f
//     digits of 1 bit    8 bytes a token: byte i / 2, bit 2 f + i % 2
//
// 16 bytes a token are what ldmatrix reads: rows as they are give operands with tokens as rows,
// transposed ones (by pairs of bytes) operands with places as rows. A thread meets the four tokens of a
// quad of tokens together, token_at(quad, 0..3): one of each eight, so that no bank of shared memory is met
// twice either way. Chunks of single bits, too narrow for that instruction, lie quad by quad: four
// word pairs (i / 4), a word for two tokens of the quad, 16 bits for each.
//
// After the chunks come the 32 tokens' gains (codec/bands/midrise.h), quad by quad, and one word with a bit for
// each token that is kept exact elsewhere; padded to 16 bytes.
#pragma once

#include <array>
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
inline constexpr int kChunkPlaces = 64, kChunkQuads = kChunkPlaces / 4;
inline constexpr int kMaxChunks = 24;
inline constexpr int kMaxDigits = 4;  // of a code
inline constexpr int kTileTail = 48;  // bytes of gains, escapes and padding

// width: of digits, 1 or 2.
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

// Where a digit lies in its chunk. token < 32, place < 64.
struct DigitField {
  int word, shift;
};
KVSPAN_HOST_DEVICE constexpr DigitField field_of(int width, int token, int place) {
  const int i = place / 4, f = place % 4, b = token / 8;
  if (width == 2) return {4 * token + i / 4, i % 4 * 8 + 2 * f};
  return {8 * quad_of(token) + i / 4 * 2 + b / 2, b % 2 * 16 + i % 4 / 2 * 8 + 2 * f + i % 2};
}

// The token that 16 bits of a chunk belong to; `half` counts them from the chunk's beginning.
KVSPAN_HOST_DEVICE constexpr int token_of_half(int width, int half) {
  return width == 2 ? half / 8 : token_at(half / 16, half % 4);
}

class BandsTiles {
 public:
  // Four digits side by side.
  struct DigitQuad {
    std::int16_t quad = -1;  // of the layout; -1: empty places
    std::uint8_t shift = 0;  // above the lowest bit of the codes
  };

  BandsTiles() = default;
  // At least so many chunks: more than the layout needs have no digits.
  explicit BandsTiles(const BandsLayout& layout, int chunks = 0);

  int chunks() const noexcept { return static_cast<int>(widths_.size()); }
  // Of digits, by chunk.
  std::span<const std::uint8_t> widths() const noexcept { return widths_; }
  // Of the first word of a chunk.
  int offset(int chunk) const noexcept { return offsets_[static_cast<std::size_t>(chunk)]; }
  // The largest of the chunk's digits.
  int shift(int chunk) const noexcept;
  // By place / 4.
  std::span<const DigitQuad> digits() const noexcept { return digits_; }
  // Of each of the layout's quads where its digits are, the lowest first: places / 4; -1: no more.
  using QuadDigits = std::array<std::int16_t, kMaxDigits>;
  std::span<const QuadDigits> of_quads() const noexcept { return of_quads_; }
  // What is added to the codes of a quad of the layout to have them unsigned.
  int middle(std::size_t quad) const noexcept { return 1 << (quad_widths_[quad] - 1); }
  std::size_t code_bytes() const noexcept { return code_bytes_; }
  std::size_t tile_bytes() const noexcept { return code_bytes_ + kTileTail; }
  bool all_of_width(int width) const noexcept;

  // Plain reading and writing of single codes, two's complement: what kernels are held against, and
  // what saved caches go through. place: of the layout.
  void put(std::byte* tile, int token, int place, std::int8_t code) const noexcept;
  std::int8_t get(const std::byte* tile, int token, int place) const noexcept;
  void put_gain(std::byte* tile, int token, std::int8_t gain) const noexcept;
  std::int8_t gain(const std::byte* tile, int token) const noexcept;
  std::uint32_t escaped(const std::byte* tile) const noexcept;

 private:
  std::vector<std::uint8_t> widths_;
  std::vector<int> offsets_;
  std::vector<DigitQuad> digits_;
  std::vector<QuadDigits> of_quads_;
  std::vector<std::uint8_t> quad_widths_;  // bits of the layout's codes
  std::size_t code_bytes_ = 0;
};

}  // namespace kvspan::cuda
