// SPDX-License-Identifier: Apache-2.0
#include "base/byte_stream.h"

#include <array>

namespace kvspan {
namespace {

constexpr std::array<std::uint64_t, 256> make_table() {
  std::array<std::uint64_t, 256> table{};
  for (std::uint64_t i = 0; i < 256; ++i) {
    std::uint64_t value = i;
    for (int bit = 0; bit < 8; ++bit) {
      value = (value >> 1) ^ ((value & 1) ? 0xc96c5795d7870f42ull : 0);
    }
    table[i] = value;
  }
  return table;
}
constexpr std::array<std::uint64_t, 256> kTable = make_table();

}  // namespace

std::uint64_t crc64(std::span<const std::byte> bytes, std::uint64_t before) noexcept {
  std::uint64_t crc = ~before;
  for (const std::byte b : bytes) {
    crc = kTable[(crc ^ static_cast<std::uint64_t>(b)) & 0xff] ^ (crc >> 8);
  }
  return ~crc;
}

}  // namespace kvspan
