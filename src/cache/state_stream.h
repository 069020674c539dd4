// SPDX-License-Identifier: Apache-2.0
// Where a cache's state is written to and read from: its bytes, and the codes that these name.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/byte_stream.h"
#include "base/memory.h"
#include "cache/code/code_bytes.h"
#include "kvspan/saved_cache.h"

namespace kvspan {

// The format that is written, and the oldest that is read (docs/reference/formats/cache.md).
inline constexpr std::uint32_t kCacheVersion = 4, kOldestCacheVersion = 3;

struct StateWriter {
  ByteWriter& out;
  CodeWriter& codes;
  std::vector<SavedRun>* runs = nullptr;  // where asked for: the runs of tokens written so far
};
struct StateReader {
  ByteReader& in;
  CodeReader& codes;
  std::shared_ptr<Ledger> ledger;
  std::uint32_t version = kCacheVersion;  // of the bytes
  std::int32_t next = 0;  // position of the layer; later formats keep it in the extents of its groups
};

}  // namespace kvspan
