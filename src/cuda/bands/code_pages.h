// SPDX-License-Identifier: Apache-2.0
// Codes of a group (method/layer_tokens.h) as pages of the device hold them, and back: 256
// positions in eight tiles (cuda/bands/bands_tiles.h). Plain functions of memory; no device is
// needed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cuda/bands/bands_tiles.h"
#include "method/layer_tokens.h"

namespace kvspan {
class BandsLayout;
}

namespace kvspan::cuda {

class CodePages {
 public:
  // chunks: of the layer's groups, the most; 0: as many as the layout needs.
  explicit CodePages(const BandsLayout& layout, int chunks = 0);

  std::size_t page_bytes() const noexcept;
  // A whole page of a group, with zeros where nothing is held.
  std::vector<std::byte> page_of(const LayerTokens& from, std::size_t group,
                                 std::int32_t page) const;
  // Codes that are held become those of the group, which has room for them.
  void read_page(std::span<const std::byte> tiles, std::int32_t page, std::size_t group,
                 LayerTokens& to) const;

  const BandsTiles& tiles() const noexcept { return tiles_; }

 private:
  template <class Byte, class Use>
  void each_token(Byte* tiles, const LayerTokens& held, std::int32_t page, const Use& use) const;
  template <class Use>
  void each_digit(std::size_t quad, const Use& use) const;

  BandsTiles tiles_;
  std::size_t places_, stored_;  // of the layout; those not stored have no codes
};

}  // namespace kvspan::cuda
