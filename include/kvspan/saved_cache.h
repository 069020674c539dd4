// SPDX-License-Identifier: Apache-2.0
// A saved cache with the offsets of its tokens. Sequences with a common prefix share most spans, so a
// store of many saved caches keeps each span once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kvspan/result.h"

namespace kvspan {

class KvCache;  // kvspan/cache.h

// Bytes of consecutive tokens in one layer that later tokens do not change.
struct SavedRun {
  std::size_t offset = 0, bytes = 0;
  std::int32_t end = 0;  // position after the last token
};

struct SavedCache {
  std::vector<std::byte> bytes;  // those of KvCache::save
  std::vector<SavedRun> runs;    // by offset, disjoint; empty if the cache knows none
};

// The bytes of the cache's save() and the offsets of tokens in them.
Result<SavedCache> save_with_runs(const KvCache& cache);

}  // namespace kvspan
