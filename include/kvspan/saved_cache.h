// SPDX-License-Identifier: Apache-2.0
// A cache as bytes, with the places of tokens in them. Two sequences that begin alike have mostly the
// same runs: who keeps many saved caches keeps such runs once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kvspan/result.h"

namespace kvspan {

class KvCache;  // kvspan/cache.h

// Bytes of some neighbouring tokens in one layer that no later token changes.
struct SavedRun {
  std::size_t offset = 0, bytes = 0;
  std::int32_t end = 0;  // one beyond the last token
};

struct SavedCache {
  std::vector<std::byte> bytes;  // what KvCache::save gives
  std::vector<SavedRun> runs;    // by offset, apart from each other; none where a cache knows none
};

// What the cache's save() gives, and where tokens lie in it.
Result<SavedCache> save_with_runs(const KvCache& cache);

}  // namespace kvspan
