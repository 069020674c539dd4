// SPDX-License-Identifier: Apache-2.0
// What the layers of a cache hold.
#pragma once

#include <cstddef>
#include <vector>

#include "kvspan/cache.h"

namespace kvspan {

// [layers], together KvCache::bytes().total; a code that several layers use counts in the first of
// them. Empty for a kind of cache that does not know.
std::vector<std::size_t> layer_bytes(const KvCache& cache);

}  // namespace kvspan
