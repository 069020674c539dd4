// SPDX-License-Identifier: Apache-2.0
// Working memory of attend_bands.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "attention/bands/anchor_turns.h"
#include "attention/scratch.h"
#include "base/memory.h"

namespace kvspan {

// Memory that attend_bands needs, shared by calls; bounded by rows and components, whatever the
// number of tokens (attention/bands/bands_cut.h).
class BandsScratch final : public ScratchPart {
 public:
  // For calls that turn queries by `rope`; by one thread. Throws std::bad_alloc.
  void prepare(int threads, std::size_t work_floats, std::size_t partial_floats, const Rope& rope);
  float* work(int thread) noexcept {
    return work_.as<float>() + static_cast<std::size_t>(thread) * stride_;
  }
  AnchorTurns& turns(int thread) noexcept { return turns_[static_cast<std::size_t>(thread)]; }
  float* partials() noexcept { return partials_.as<float>(); }
  std::size_t bytes() const noexcept override {
    std::size_t turns = 0;
    for (const AnchorTurns& some : turns_) turns += some.bytes();
    return work_.bytes() + partials_.bytes() + turns;
  }

 private:
  Buffer work_, partials_;
  std::size_t stride_ = 0;
  std::vector<AnchorTurns> turns_;  // [threads]
};

}  // namespace kvspan
