// SPDX-License-Identifier: Apache-2.0
// Turns of RoPE that calls ask for again and again: chunks of tokens start at the same anchors in
// every layer and sequence, and their sines would take a fifth of moving a query there.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kvspan/cache.h"

namespace kvspan {

// By one thread at a time.
class AnchorTurns {
 public:
  struct Turn {
    const float *cosines, *sines;  // of pairs
  };
  // Turns that are known; then the oldest makes room.
  static constexpr std::size_t kMost = 48;

  // Before the first turn; those of another rope are forgotten. Throws std::bad_alloc.
  void use(const Rope& rope);
  // As rope_turn gives it; stays while no kMost others are asked for.
  Turn of(std::int32_t position, float scale) noexcept;

  std::size_t bytes() const noexcept { return numbers_.capacity() * sizeof(float); }

 private:
  struct Known {
    std::int32_t position;
    float scale;
  };
  Rope rope_;
  std::array<Known, kMost> known_;
  std::size_t count_ = 0, oldest_ = 0;
  std::vector<float> numbers_;  // [kMost][2][pairs]
};

}  // namespace kvspan
