// SPDX-License-Identifier: Apache-2.0
#include "cuda/bands/bands_tiles.h"

#include <algorithm>
#include <cstring>

#include "codec/bands/bands_pack.h"

namespace kvspan::cuda {
namespace {

void put_field(std::byte* chunk, const CodeField& field, std::uint32_t value) {
  if (field.bits == 0) return;
  std::uint32_t word = 0;
  std::byte* const at = chunk + static_cast<std::ptrdiff_t>(field.word) * 4;
  std::memcpy(&word, at, sizeof(word));
  const std::uint32_t mask = (1u << field.bits) - 1u;
  word = (word & ~(mask << field.shift)) | (value & mask) << field.shift;
  std::memcpy(at, &word, sizeof(word));
}

std::uint32_t get_field(const std::byte* chunk, const CodeField& field) {
  if (field.bits == 0) return 0;
  std::uint32_t word = 0;
  std::memcpy(&word, chunk + static_cast<std::ptrdiff_t>(field.word) * 4, sizeof(word));
  return word >> field.shift & ((1u << field.bits) - 1u);
}

}  // namespace

BandsTiles::BandsTiles(const BandsLayout& layout, int chunks) {
  const std::size_t places = layout.quads() * kBandQuad;
  int words = 0;
  const auto least = static_cast<std::size_t>(chunks) * kChunkPlaces;
  for (std::size_t first = 0; first < std::max(places, least); first += kChunkPlaces) {
    const int width = first < places ? layout.width(first) : 1;
    widths_.push_back(static_cast<std::uint8_t>(width));
    offsets_.push_back(words);
    words += chunk_words(width);
  }
  code_bytes_ = static_cast<std::size_t>(words) * 4;
}

bool BandsTiles::all_of_width(int width) const noexcept {
  return std::all_of(widths_.begin(), widths_.end(), [&](int w) { return w == width; });
}

void BandsTiles::put(std::byte* tile, int token, int place, std::int8_t code) const noexcept {
  const auto chunk = static_cast<std::size_t>(place / kChunkPlaces);
  const int width = widths_[chunk];
  const auto u = static_cast<std::uint32_t>(code + (1 << (width - 1)));
  std::byte* const at = tile + static_cast<std::ptrdiff_t>(offsets_[chunk]) * 4;
  const CodeFields fields = fields_of(width, token, place % kChunkPlaces);
  put_field(at, fields.low, u);
  put_field(at, fields.high, u >> fields.low.bits);
}

std::int8_t BandsTiles::get(const std::byte* tile, int token, int place) const noexcept {
  const auto chunk = static_cast<std::size_t>(place / kChunkPlaces);
  const int width = widths_[chunk];
  const std::byte* const at = tile + static_cast<std::ptrdiff_t>(offsets_[chunk]) * 4;
  const CodeFields fields = fields_of(width, token, place % kChunkPlaces);
  const std::uint32_t u = get_field(at, fields.low) | get_field(at, fields.high) << fields.low.bits;
  return static_cast<std::int8_t>(static_cast<int>(u) - (1 << (width - 1)));
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
  std::uint32_t bits = 0;
  std::memcpy(&bits, tile + code_bytes_ + kTileTokens, sizeof(bits));
  return bits;
}

}  // namespace kvspan::cuda
