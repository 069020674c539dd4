// SPDX-License-Identifier: Apache-2.0
// Bit layout of a row of integer codes. A row is cut into chunks of 32 components; each chunk is
// complete in itself and starts on a byte. Codes are two's complement. Within a chunk of m
// components (m = 32, or less in the last one), component i lies in:
//
//     int8   byte i
//     int4   nibble i / h of byte i % h, h = ceil(m / 2): the low nibbles of the 16 bytes are
//            components 0..15, the high nibbles 16..31 (llama.cpp's order)
//     int2   bits 2 (i / h) .. + 1 of byte i % h, h = ceil(m / 4)
//     int3   its low two bits as int2; then, in the next ceil(m / 8) = h bytes, its sign:
//            bit i / h of byte i % h. (8 + 4 bytes a full chunk.)
//
// Why so: every vector of 16 or 32 codes comes out of one load by shifts and masks, without any
// shuffling, and the sign plane of int3 by one test against constant masks, which is less work than
// ten codes in 32 bits (divisions of a word across lanes) on NEON and AVX2 alike. Chunks of 32 keep
// the usual groups of 32, and head sizes that are multiples of 32, free of tails.
// Bits of the last byte of a plane that belong to no component are 0.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvspan {

inline constexpr std::size_t kCodecChunk = 32;

// Bytes of n codes of 8, 4, 3 or 2 bits, the first at a chunk's start.
constexpr std::size_t packed_bytes(int bits, std::size_t n) noexcept {
  const std::size_t whole = n / kCodecChunk, rest = n % kCodecChunk;
  switch (bits) {
    case 8:
      return n;
    case 4:
      return whole * 16 + (rest + 1) / 2;
    case 3:
      return whole * 12 + (rest + 3) / 4 + (rest + 7) / 8;
    default:
      return whole * 8 + (rest + 3) / 4;
  }
}

}  // namespace kvspan
