// SPDX-License-Identifier: Apache-2.0
// Working memory of attend_bands.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/memory.h"

namespace kvspan {

// Memory that attend_bands needs, shared by calls; bounded by rows and components, whatever the
// number of tokens (attention/bands_cut.h).
class BandsScratch {
 public:
  // Room for `count` log-sum-exps of the other tokens; by one thread. Throws std::bad_alloc.
  float* lse(std::size_t count);

  void prepare(int threads, std::size_t work_floats, std::size_t partial_floats);
  float* work(int thread) noexcept {
    return work_.as<float>() + static_cast<std::size_t>(thread) * stride_;
  }
  float* partials() noexcept { return partials_.as<float>(); }
  std::size_t bytes() const noexcept { return work_.bytes() + partials_.bytes() + lse_.bytes(); }
  bool ready = false;

 private:
  Buffer work_, partials_, lse_;
  std::size_t stride_ = 0;
};

}  // namespace kvspan
