// SPDX-License-Identifier: Apache-2.0
// Codes of a trellis (codec/bands/trellis.h) become bytes before attention reads them: what a code
// stands for depends on those before it in its token, and a table of 64 bytes tells it. A thread goes
// through the chunks of one token, four quads of a chain in a word; the bytes that it leaves are codes of
// 8 bits in the order of cuda/bands/bands_tiles.h, and read as such.
#pragma once

#include <cstdint>
#include <utility>

#include "cuda/bands/unpack.cuh"

namespace kvspan::cuda {

inline constexpr int kTrellisWidths = 6, kTrellisLevels = 64;
inline constexpr int kWideChunkBytes = 4 * kPlaneBytes;

// Tables in shared memory, one in each 256 bytes, so that an index is the lowest byte of an address.
struct TrellisTables {
  static constexpr int kStride = 256;
  static constexpr int kBytes = kStride + kTrellisWidths * kStride;  // the first to begin at a whole 256
  std::uint32_t first;

  __device__ __forceinline__ explicit TrellisTables(std::uint32_t at)
      : first((at + kStride - 1) & ~(kStride - 1u)) {}
  __device__ __forceinline__ std::uint32_t of(int width) const {
    return first + static_cast<unsigned>(width - 1) * kStride;
  }
  // By all threads of a block, before a barrier. levels [6][64]: T + 128. Codes of 2 bits and more are met as
  // tiles have them, their highest bit inverted.
  __device__ __forceinline__ void fill(const std::uint8_t* levels) const {
    for (int i = threadIdx.x; i < kTrellisWidths * kTrellisLevels; i += blockDim.x) {
      const int width = i / kTrellisLevels + 1, at = i % kTrellisLevels;
      const int from = width > 1 ? at ^ 1 << (width - 1) : at;
      const std::uint32_t level = __ldg(levels + (width - 1) * kTrellisLevels + from);
      asm volatile("st.shared.u8 [%0],%1;" ::"r"(of(width) + static_cast<unsigned>(at)), "r"(level) : "memory");
    }
  }
};

// The lowest bits of a chain's codes so far, a byte for each.
struct ChainBits {
  std::uint32_t last = 0;   // of the four quads before
  std::uint32_t carry = 0;  // what those count in the histories of the next four
  std::uint32_t fifth = 0;  // of the quad before them

  // Histories of four quads, the newest bit lowest, kBits of them; and the quads' own bits are taken in.
  template <int kBits>
  __device__ __forceinline__ std::uint32_t next(std::uint32_t own) {
    // Quads that are one, two and three before count 1, 2 and 4.
    const std::uint64_t product = std::uint64_t{own} * 0x04020100u;
    std::uint32_t found = static_cast<std::uint32_t>(product) + carry + 8 * last;
    if constexpr (kBits == 5) found += 16 * ((last << 8) + fifth);
    if constexpr (kBits < 4) found &= ((1u << kBits) - 1u) * 0x01010101u;
    fifth = last >> 24;
    last = own;
    carry = static_cast<std::uint32_t>(product >> 32);
    return found;
  }
};

// Rows of a token in a chunk.
template <int kField>
struct PackedRow {
  static constexpr int kPlanes = kField == 8 ? 4 : kField / 4 * 2 + (kField % 4 >= 2 ? 1 : 0);
  uint4 planes[kPlanes > 0 ? kPlanes : 1];
  std::uint32_t bits[4];  // 16 of them each

  __device__ __forceinline__ PackedRow(std::uint32_t chunk, int token) {
#pragma unroll
    for (int i = 0; i < kPlanes; ++i) {
      planes[i] = load_shared4(chunk + static_cast<unsigned>(i * kPlaneBytes + 16 * token));
    }
    if constexpr (kField % 2 == 1) {
      const auto at = static_cast<unsigned>(kPlanes * kPlaneBytes + 32 * quad_of(token) + token / 16 * 4);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        bits[i] = load_shared(chunk + at + 8u * static_cast<unsigned>(i)) >> (token / 8 % 2 * 16);
      }
    }
  }
  __device__ __forceinline__ std::uint32_t word(int plane, int i) const {
    const uint4& x = planes[plane];
    return i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w;
  }
  // Single bits of chain kChain in quads 4 i .. 4 i + 3, a byte for each.
  template <int kChain>
  __device__ __forceinline__ std::uint32_t single(int i) const {
    const std::uint32_t twice = __byte_perm(bits[i] >> (2 * kChain), 0, 0x1100);
    return (twice & 0x00010001u) | (twice >> 1 & 0x01000100u);
  }
  // Their fields.
  template <int kChain>
  __device__ __forceinline__ std::uint32_t fields(int i) const {
    if constexpr (kField == 8) {
      return word(kChain, i);
    } else if constexpr (kField == 1) {
      return single<kChain>(i) ^ 0x01010101u;  // as the trellis has them: the one bit is the highest too
    } else if constexpr (kField < 4) {
      std::uint32_t found = field<2, 2 * kChain, 0>(word(0, i));
      if constexpr (kField == 3) found += 4 * single<kChain>(i);
      return found;
    } else {
      std::uint32_t found = field<4, 4 * (kChain % 2), 0>(word(kChain / 2, i));
      if constexpr (kField == 5) found += 16 * single<kChain>(i);
      if constexpr (kField == 6) found += 16 * field<2, 2 * kChain, 0>(word(2, i));
      return found;
    }
  }
};

// Four bytes of a table, at the four bytes of `index`.
__device__ __forceinline__ std::uint32_t look_up(std::uint32_t table, std::uint32_t index) {
  std::uint32_t found[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    asm("ld.shared.u8 %0,[%1];"
        : "=r"(found[i])
        : "r"(__byte_perm(index, table, static_cast<unsigned>(0x7650 | i))));
  }
  // Sums by multiplication: logical operations have more to do.
  return found[3] * (1u << 24) + (found[2] * (1u << 16) + (found[1] * (1u << 8) + found[0]));
}

// A chunk of one token: a plane of bytes for each chain.
template <int kField>
__device__ __forceinline__ void expand_row(std::uint32_t chunk, int token, const TrellisTables& tables,
                                           std::uint32_t to, ChainBits (&chains)[4]) {
  const PackedRow<kField> row(chunk, token);
  const std::uint32_t table = kField <= kTrellisWidths ? tables.of(kField) : 0;
  const auto expand = [&]<int kChain>() {
    std::uint32_t out[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const std::uint32_t fields = row.template fields<kChain>(i);
      if constexpr (kField == 8) {
        out[i] = fields;
      } else {
        const std::uint32_t history =
            chains[kChain].template next<kTrellisWidths - kField>(fields & 0x01010101u);
        out[i] = look_up(table, (history << kField) + fields);
      }
    }
    asm volatile("st.shared.v4.u32 [%0],{%1,%2,%3,%4};" ::"r"(
                     to + static_cast<unsigned>(kChain * kPlaneBytes + 16 * token)),
                 "r"(out[0]), "r"(out[1]), "r"(out[2]), "r"(out[3])
                 : "memory");
  };
  expand.template operator()<0>();
  expand.template operator()<1>();
  expand.template operator()<2>();
  expand.template operator()<3>();
}

// A tile, by a warp: a lane for each token. widths and offsets: of its chunks, in words.
__device__ __forceinline__ void expand_tile(const TrellisTables& tables, const std::uint8_t* widths,
                                            const std::int32_t* offsets, int chunks, std::uint32_t tile,
                                            int lane, std::uint32_t to) {
  ChainBits chains[4];
#pragma unroll 1
  for (int k = 0; k < chunks; ++k, to += kWideChunkBytes) {
    const std::uint32_t chunk = tile + 4u * static_cast<unsigned>(__ldg(offsets + k));
    switch (__ldg(widths + k)) {
      case 1:
        expand_row<1>(chunk, lane, tables, to, chains);
        break;
      case 2:
        expand_row<2>(chunk, lane, tables, to, chains);
        break;
      case 3:
        expand_row<3>(chunk, lane, tables, to, chains);
        break;
      case 4:
        expand_row<4>(chunk, lane, tables, to, chains);
        break;
      case 5:
        expand_row<5>(chunk, lane, tables, to, chains);
        break;
      case 6:
        expand_row<6>(chunk, lane, tables, to, chains);
        break;
      default:
        expand_row<8>(chunk, lane, tables, to, chains);
        break;
    }
  }
}

}  // namespace kvspan::cuda
