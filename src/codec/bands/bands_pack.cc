// SPDX-License-Identifier: Apache-2.0
#include "codec/bands/bands_pack.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include "base/expect.h"
#include "base/fail.h"
#include "base/kernels_by_level.h"

namespace kvspan {

const BandsKernels& bands_kernels(CpuLevel level) noexcept {
  static const KernelsOfLevel<BandsKernels> kTable[] = {
      {CpuLevel::kReference, detail::kBandsKernelsRef},
#if defined(__aarch64__)
      {CpuLevel::kNeon, {detail::kBandsKernelsRef.pack, detail::kBandsUnpackNeon, detail::kBandsReadNeon}},
#elif defined(__x86_64__)
      {CpuLevel::kAvx2, {detail::kBandsKernelsRef.pack, detail::kBandsUnpackAvx2, detail::kBandsReadAvx2}},
      {CpuLevel::kAvx512, {detail::kBandsKernelsRef.pack, detail::kBandsUnpackAvx512, detail::kBandsReadAvx512}},
      {CpuLevel::kAvx512Vbmi, {detail::kBandsKernelsRef.pack, detail::kBandsUnpackAvx512, detail::kBandsReadVbmi}},
#endif
  };
  return kernels_for(level, kTable);
}

Result<BandsLayout> BandsLayout::create(std::span<const std::uint8_t> bits,
                                        BandsQuantizer quantizer) {
  for (std::size_t i = 0; i < bits.size(); ++i) {
    if (bits[i] > 8 || bits[i] == 7) {
      return fail(ErrorCode::kInvalidArgument, "component {}: {} bits; allowed are 0 to 6 and 8", i,
                  bits[i]);
    }
  }
  BandsLayout layout;
  layout.kernels_ = &bands_kernels(cpu_level());
  layout.quantizer_ = quantizer;
  layout.components_ = bits.size();
  auto& order = layout.order_;
  order.resize(bits.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return bits[a] > bits[b]; });
  const std::size_t coded =
      bits.size() - static_cast<std::size_t>(std::count(bits.begin(), bits.end(), 0));
  const std::size_t quads = (coded + kBandQuad - 1) / kBandQuad;
  order.resize(std::min(bits.size(), quads * kBandQuad));
  for (std::size_t q = 0; q < quads; ++q) {
    const int width = bits[order[q * kBandQuad]];
    layout.widths_.push_back(static_cast<std::uint8_t>(width));
    if (layout.ranges_.empty() || layout.ranges_.back().width != width) {
      layout.ranges_.push_back({q, 0, layout.tile_bytes_, width});
    }
    ++layout.ranges_.back().count;
    layout.tile_bytes_ += static_cast<std::size_t>(width) * kBandCodes / 8;
  }
  for (std::size_t k = 0; k < NarrowQuads::kMost.size(); ++k) {
    std::size_t first = quads;
    while (first > 0 && layout.largest(layout.widths_[first - 1]) <= NarrowQuads::kMost[k]) --first;
    layout.narrow_.first[k] = static_cast<std::int32_t>(first);
  }
  return layout;
}

void BandsLayout::pack(const std::int8_t* codes, std::size_t tokens, std::size_t stride,
                       std::uint8_t* tile) const noexcept {
  KVSPAN_EXPECT(tokens <= kBandTokens, "at most a tile of tokens");
  std::array<std::int8_t, kBandCodes> quad;
  for (const WidthRange& range : ranges_) {
    const std::size_t bytes = static_cast<std::size_t>(range.width) * kBandCodes / 8;
    for (std::size_t q = 0; q < range.count; ++q) {
      quad.fill(0);
      const std::size_t at = (range.first + q) * kBandQuad;
      const std::size_t places = std::min(kBandQuad, stored() - at);
      for (std::size_t t = 0; t < tokens; ++t) {
        std::memcpy(&quad[t * kBandQuad], codes + t * stride + at, places);
      }
      kernels_->pack[range.width](quad.data(), 1, tile + range.offset + q * bytes);
    }
  }
}

// history [64]: of the ranges before, zeros before the first.
void BandsLayout::unpack_range(const WidthRange& range, const std::uint8_t* tile, std::uint8_t* history,
                             std::int8_t* out) const noexcept {
  std::int8_t* const to = out + range.first * kBandCodes;
  const std::uint8_t* const from = tile + range.offset;
  const auto width = static_cast<std::size_t>(range.width);
  if (chained(range.width)) return kernels_->read[width](from, range.count, history, to);
  kernels_->unpack[width](from, range.count, to);
}

bool BandsLayout::chained(int width) const noexcept {
  return quantizer_ == BandsQuantizer::kTrellis && width <= kTrellisMaxBits;
}

float BandsLayout::reach(int width) const noexcept {
  return static_cast<float>(largest(width)) + (chained(width) ? 0.5f : 0.0f);
}

float BandsLayout::fine_error(int width) const noexcept {
  if (!chained(width)) return 1.0f / 12.0f;
  return static_cast<float>(trellis_distortion(width) * trellis_units(width) * trellis_units(width));
}

int BandsLayout::largest(int width) const noexcept {
  int most = 1 << (width - 1);
  if (chained(width)) {
    most = 0;
    for (int i = 0; i < kTrellisEntries; ++i) {
      most = std::max(most, std::abs(int{trellis_table(width)[i]}));
    }
  }
  return most;
}

void BandsLayout::values(const std::int8_t* codes, std::int8_t* out) const noexcept {
  if (quantizer_ == BandsQuantizer::kTrellis) return trellis_values(widths_, codes, out);
  std::copy_n(codes, quads() * kBandQuad, out);
}

}  // namespace kvspan
