// SPDX-License-Identifier: Apache-2.0
#include "attention/bands/anchor_turns.h"

#include "cache/rope.h"

namespace kvspan {

void AnchorTurns::use(const Rope& rope) {
  if (rope == rope_) return;
  count_ = oldest_ = 0;
  numbers_.resize(kMost * 2 * rope.angles.size());
  rope_ = rope;
}

AnchorTurns::Turn AnchorTurns::of(std::int32_t position, float scale) noexcept {
  const std::size_t pairs = rope_.angles.size();
  std::size_t i = 0;
  while (i < count_ && (known_[i].position != position || known_[i].scale != scale)) ++i;
  const bool known = i < count_;
  if (!known && count_ < kMost) ++count_;
  if (i == kMost) {
    i = oldest_;
    oldest_ = (oldest_ + 1) % kMost;
  }
  float* const cosines = numbers_.data() + i * 2 * pairs;
  if (!known) {
    known_[i] = {position, scale};
    rope_turn(rope_, position, scale, cosines, cosines + pairs);
  }
  return {cosines, cosines + pairs};
}

}  // namespace kvspan
