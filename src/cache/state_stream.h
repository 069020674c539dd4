// SPDX-License-Identifier: Apache-2.0
// Where a cache's state is written to and read from: its bytes, and the codes that these name.
#pragma once

#include <memory>
#include <vector>

#include "base/byte_stream.h"
#include "base/memory.h"
#include "cache/code/code_bytes.h"
#include "kvspan/saved_cache.h"

namespace kvspan {

struct StateWriter {
  ByteWriter& out;
  CodeWriter& codes;
  std::vector<SavedRun>* runs = nullptr;  // where asked for: the runs of tokens written so far
};
struct StateReader {
  ByteReader& in;
  CodeReader& codes;
  std::shared_ptr<Ledger> ledger;
};

}  // namespace kvspan
