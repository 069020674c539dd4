// SPDX-License-Identifier: Apache-2.0
// Packing of midrise codes whose components have 0 to 6, or 8, bits each: the storage of a bands
// segment.
//
// Components are sorted by level, highest first (ties in their own order); those with no bits come
// last and are not stored. Four neighbours in that order form a quad, all of the width of its
// first: so at each change of level up to three components are raised to the level above, and the
// last quad may take in components that had no bits. width(i) tells; use it, not the bits asked
// for, to choose steps, and no bit is lost. (Where fewer than four components are left, places of
// the last quad stay empty; their codes are 0.)
//
// Tokens come in tiles of 16. A tile is its quads one after the other, and a quad of width w is the
// 64 codes [16 tokens][4 components] in 8 w bytes: one or two planes, each holding some bits of
// every code. Code e = 4 token + place, two's complement; planes in stored order, lowest bit first:
//
//     w = 8          the code                             w = 3    bits 0..1, then bit 2
//     w = 4, 2, 1    the code                             w = 5    bits 0..3, then bit 4
//                                                         w = 6    bits 2..5, then bits 0..1
//
// In a plane of 8, 4, 2 or 1 bits (64, 32, 16, 8 bytes), the field of code e is
//
//     8    byte e                                         2    bits 2 (e / 16) .. + 1 of byte e %
//     16 4    nibble (e / 16) % 2 of byte                    1    bit e / 8 of byte e % 8
//          16 (e / 32) + e % 16
//
// Why: unpack gives int8 [quad][16 tokens][4 components] by shifts, masks and bit tests alone, 64
// codes at a time, with no shuffling. That is the operand of int8 dot products both ways: a
// register holds 4 tokens x 4 components, so scores take it as it is (lanes are tokens, the query's
// quad is broadcast), and weighted sums of values take it after one 4 x 4 byte transpose (lanes are
// components, the weights of four tokens are broadcast). One unpacking serves all query heads.
//
// A code v stands for step (v + 1/2): readers add half the sum of their operand once. With the
// trellis quantizer that holds of what unpack gives, not of the codes that were packed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "base/cpu_level.h"
#include "codec/bands/trellis.h"
#include "kvspan/result.h"

namespace kvspan {

inline constexpr std::size_t kBandTokens = 16;  // of a tile
inline constexpr std::size_t kBandQuad = 4;
inline constexpr std::size_t kBandCodes = kBandTokens * kBandQuad;  // of a quad of a tile

enum class BandsQuantizer : std::uint8_t {
  kUniform,  // a code is its own level (codec/bands/midrise.h)
  kTrellis,  // codes of 1 to 6 bits depend on those before (codec/bands/trellis.h)
};

// From which quads on all that codes stand for is at most 64, 32 and 16 in magnitude: then 2, 4 and 8 sums of two of
// their products with bytes stay within 16 bits when added.
struct NarrowQuads {
  static constexpr std::int32_t kNone = std::numeric_limits<std::int32_t>::max();
  static constexpr std::array<int, 3> kMost = {64, 32, 16};
  std::array<std::int32_t, 3> first = {kNone, kNone, kNone};
};

class BandsLayout {
 public:
  BandsLayout() = default;
  // bits [components], each 0 to 6 or 8. Uses the kernels of cpu_level() at this moment.
  static Result<BandsLayout> create(std::span<const std::uint8_t> bits,
                                    BandsQuantizer quantizer = BandsQuantizer::kUniform);

  std::size_t components() const noexcept { return components_; }
  // Components stored; places beyond them in the last quad are empty.
  std::size_t stored() const noexcept { return order_.size(); }
  std::size_t quads() const noexcept { return widths_.size(); }
  // The component at each stored place.
  std::span<const std::uint32_t> order() const noexcept { return order_; }
  // Bits of the component at stored place i.
  int width(std::size_t i) const noexcept { return widths_[i / kBandQuad]; }
  std::span<const std::uint8_t> quad_widths() const noexcept { return widths_; }
  const NarrowQuads& narrow_quads() const noexcept { return narrow_; }
  BandsQuantizer quantizer() const noexcept { return quantizer_; }
  // Whether codes of so many bits follow the trellis.
  bool chained(int width) const noexcept;
  // The largest magnitude of what codes of `width` bits stand for.
  int largest(int width) const noexcept;
  // Of codes of `width` bits, in steps: how far from 0 numbers may be that still are met, and the
  // mean squared error of those.
  float reach(int width) const noexcept;
  float fine_error(int width) const noexcept;
  std::size_t tile_bytes() const noexcept { return tile_bytes_; }
  std::size_t unpacked_bytes() const noexcept { return quads() * kBandCodes; }

  // codes [tokens, stored()], rows `stride` apart, in stored order, each within its width; tokens
  // <= 16, missing ones are packed as 0. tile [tile_bytes()].
  void pack(const std::int8_t* codes, std::size_t tokens, std::size_t stride,
            std::uint8_t* tile) const noexcept;
  // What the codes stand for, v of step (v + 1/2), into out [quads, 16 tokens, 4 components].
  void unpack(const std::uint8_t* tile, std::int8_t* out) const noexcept {
    unpack(tile, out, [] {});
  }
  // The same; between() is called some times on the way.
  template <class Between>
  void unpack(const std::uint8_t* tile, std::int8_t* out, const Between& between) const noexcept {
    alignas(64) std::array<std::uint8_t, kBandCodes> history{};
    for (const WidthRange& range : ranges_) {
      unpack_range(range, tile, history.data(), out);
      between();
    }
  }
  // The same of one token's codes [4 quads] that have not been packed.
  void values(const std::int8_t* codes, std::int8_t* out) const noexcept;

 private:
  struct WidthRange {  // neighbouring quads of equal width
    std::size_t first, count, offset;
    int width;
  };
  void unpack_range(const WidthRange& range, const std::uint8_t* tile, std::uint8_t* history,
                  std::int8_t* out) const noexcept;

  BandsQuantizer quantizer_ = BandsQuantizer::kUniform;
  std::size_t components_ = 0;
  std::size_t tile_bytes_ = 0;
  std::vector<std::uint32_t> order_;  // [stored]
  std::vector<std::uint8_t> widths_;  // [quads]
  std::vector<WidthRange> ranges_;
  NarrowQuads narrow_;
  const struct BandsKernels* kernels_ = nullptr;
};

// Per width: packs or unpacks `quads` quads of one tile that lie side by side. Index 0 and 7 are
// empty. `read` unpacks codes of a trellis to what they stand for (trellis_values). history [64] is
// theirs, zeros before the first quad. Pointers need no alignment.
struct BandsKernels {
  using Pack = void (*)(const std::int8_t* codes, std::size_t quads, std::uint8_t* out) noexcept;
  using Unpack = void (*)(const std::uint8_t* in, std::size_t quads, std::int8_t* out) noexcept;
  using Read = void (*)(const std::uint8_t* in, std::size_t quads, std::uint8_t* history,
                        std::int8_t* out) noexcept;
  using Reads = std::array<Read, kTrellisMaxBits + 1>;
  std::array<Pack, 9> pack;
  std::array<Unpack, 9> unpack;
  Reads read;
};
// The table of a level this processor has. Packing is the reference's.
const BandsKernels& bands_kernels(CpuLevel level) noexcept;

namespace detail {
extern const BandsKernels kBandsKernelsRef;
extern const std::array<BandsKernels::Unpack, 9> kBandsUnpackNeon;
extern const std::array<BandsKernels::Unpack, 9> kBandsUnpackAvx2;
extern const BandsKernels::Reads kBandsReadAvx2;
extern const BandsKernels::Reads kBandsReadNeon;
extern const std::array<BandsKernels::Unpack, 9> kBandsUnpackAvx512;
extern const BandsKernels::Reads kBandsReadAvx512;
extern const BandsKernels::Reads kBandsReadVbmi;
}  // namespace detail

}  // namespace kvspan
