// SPDX-License-Identifier: Apache-2.0
#include "cuda/bands/bands_tiles.h"

#include <algorithm>
#include <cstring>

#include "codec/bands/bands_pack.h"

namespace kvspan::cuda {
namespace {

std::uint32_t word_at(const std::byte* at) {
  std::uint32_t word = 0;
  std::memcpy(&word, at, sizeof(word));
  return word;
}

}  // namespace

BandsTiles::BandsTiles(const BandsLayout& layout, int chunks)
    : quad_widths_(layout.quad_widths().begin(), layout.quad_widths().end()) {
  of_quads_.assign(layout.quads(), {-1, -1, -1, -1});
  int words = 0;
  // Digits of `width` bits from the highest down, then what fills the last chunk.
  const auto add_digits = [&](int width) {
    for (int height = kMaxDigits - 1; height >= 0; --height) {
      for (std::size_t q = 0; q < layout.quads(); ++q) {
        const int pairs = quad_widths_[q] / 2, odd = quad_widths_[q] % 2;
        if (width == 2 ? height >= pairs : height != pairs || odd == 0) continue;
        of_quads_[q][static_cast<std::size_t>(height)] = static_cast<std::int16_t>(digits_.size());
        digits_.push_back({static_cast<std::int16_t>(q), static_cast<std::uint8_t>(2 * height)});
      }
    }
    while (digits_.size() > widths_.size() * kChunkQuads) {
      widths_.push_back(static_cast<std::uint8_t>(width));
      offsets_.push_back(words);
      words += chunk_words(width);
    }
    digits_.resize(widths_.size() * kChunkQuads);
  };
  add_digits(2);
  add_digits(1);
  while (this->chunks() < chunks) {
    widths_.push_back(1);
    offsets_.push_back(words);
    words += chunk_words(1);
  }
  digits_.resize(widths_.size() * kChunkQuads);
  code_bytes_ = static_cast<std::size_t>(words) * 4;
}

int BandsTiles::shift(int chunk) const noexcept {
  return digits_[static_cast<std::size_t>(chunk) * kChunkQuads].shift;
}

bool BandsTiles::all_of_width(int width) const noexcept {
  return std::all_of(widths_.begin(), widths_.end(), [&](int w) { return w == width; });
}

void BandsTiles::put(std::byte* tile, int token, int place, std::int8_t code) const noexcept {
  const auto quad = static_cast<std::size_t>(place) / 4;
  const auto u = static_cast<std::uint32_t>(code + middle(quad));
  for (const std::int16_t at : of_quads_[quad]) {
    if (at < 0) break;
    const auto chunk = static_cast<std::size_t>(at) / kChunkQuads;
    const DigitField field =
        field_of(widths_[chunk], token, at % kChunkQuads * 4 + place % 4);
    std::byte* const to = tile + static_cast<std::ptrdiff_t>(offsets_[chunk] + field.word) * 4;
    const std::uint32_t mask = (1u << widths_[chunk]) - 1u;
    const std::uint32_t digit = u >> digits_[static_cast<std::size_t>(at)].shift & mask;
    const std::uint32_t word = (word_at(to) & ~(mask << field.shift)) | digit << field.shift;
    std::memcpy(to, &word, sizeof(word));
  }
}

std::int8_t BandsTiles::get(const std::byte* tile, int token, int place) const noexcept {
  const auto quad = static_cast<std::size_t>(place) / 4;
  std::uint32_t u = 0;
  for (const std::int16_t at : of_quads_[quad]) {
    if (at < 0) break;
    const auto chunk = static_cast<std::size_t>(at) / kChunkQuads;
    const DigitField field =
        field_of(widths_[chunk], token, at % kChunkQuads * 4 + place % 4);
    const std::byte* const from = tile + static_cast<std::ptrdiff_t>(offsets_[chunk] + field.word) * 4;
    u |= (word_at(from) >> field.shift & ((1u << widths_[chunk]) - 1u))
         << digits_[static_cast<std::size_t>(at)].shift;
  }
  return static_cast<std::int8_t>(static_cast<int>(u) - middle(quad));
}

void BandsTiles::put_gain(std::byte* tile, int token, std::int8_t gain) const noexcept {
  std::memcpy(tile + code_bytes_ + gain_byte(token), &gain, 1);
}

std::int8_t BandsTiles::gain(const std::byte* tile, int token) const noexcept {
  std::int8_t gain = 0;
  std::memcpy(&gain, tile + code_bytes_ + gain_byte(token), 1);
  return gain;
}

std::uint32_t BandsTiles::escaped(const std::byte* tile) const noexcept {
  return word_at(tile + code_bytes_ + kTileTokens);
}

}  // namespace kvspan::cuda
