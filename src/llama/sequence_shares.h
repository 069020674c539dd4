// SPDX-License-Identifier: Apache-2.0
// How the threads of a step share its sequences: each takes whole ones where all get about as much
// to do, which spares them the barriers inside a cache; what is left they work on together.
#pragma once

#include <cstddef>
#include <vector>

#include "kvspan/cache.h"

namespace kvspan {

// The rows [begin, end) of the batch that belong to one sequence.
struct SequenceRows {
  KvCache* cache = nullptr;
  std::int32_t begin = 0;
  std::int32_t end = 0;
};

// Puts those that threads take whole first and returns their number, a multiple of `threads`.
std::size_t share_out(std::vector<SequenceRows>& sequences, int threads);

// The thread that takes number i of them. Those before it in the same round have no less work, so
// rounds go to and fro.
int taker(std::size_t i, int threads);

}  // namespace kvspan
