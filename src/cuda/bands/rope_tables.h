// SPDX-License-Identifier: Apache-2.0
// Turns of RoPE on the device, shared by all layers that turn alike.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "cuda/device_memory.h"
#include "kvspan/cache.h"
#include "kvspan/result.h"

namespace kvspan::cuda {

struct RopeTable {
  Rope rope;
  std::int32_t anchor = 0;
  DeviceMemory turns;    // [..][pairs]: multiples of kTurnStep
  DeviceMemory offsets;  // [anchor][pairs]: -anchor / 2 and on
};

class RopeTables {
 public:
  explicit RopeTables(std::int32_t max_tokens) : max_tokens_(max_tokens) {}
  // The table stays where it is. anchor: a multiple of 2 kTurnStep.
  Result<const RopeTable*> find(const Rope& rope, std::int32_t anchor);
  std::size_t bytes() const noexcept;

 private:
  std::int32_t max_tokens_;
  std::deque<RopeTable> tables_;
};

}  // namespace kvspan::cuda
