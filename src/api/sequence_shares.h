// SPDX-License-Identifier: Apache-2.0
// How the threads of a step share its sequences: each takes whole ones where all get about as much
// to do, which spares them the barriers inside a cache; what is left they work on together.
#pragma once

#include <cstddef>
#include <vector>

#include "kvspan/cache.h"

namespace kvspan {

// One sequence of a batch.
struct SequenceShare {
  KvCache* cache = nullptr;
  std::int32_t tokens = 0;  // new ones
  std::size_t number = 0;   // its place in the batch
};

// Puts those that threads take whole first and returns their number, a multiple of `threads`.
std::size_t share_out(std::vector<SequenceShare>& sequences, int threads);

// The thread that takes number i of them. Those before it in the same round have no less work, so
// rounds go to and fro.
int taker(std::size_t i, int threads);

}  // namespace kvspan
