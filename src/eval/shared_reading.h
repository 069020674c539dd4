// SPDX-License-Identifier: Apache-2.0
// One pass over a text that fills several caches: the model reads with the first, and the others
// are given the same rows. What they hold is what they make of the exact keys and values; a method
// that watches attention sees none.
#pragma once

#include <memory>
#include <vector>

#include "api/wrapped_cache.h"

namespace kvspan {

class SharedReading final : public WrappedCache {
 public:
  // All are of one shape and empty.
  SharedReading(std::unique_ptr<KvCache> reader, std::vector<std::unique_ptr<KvCache>> others);

  Status append(int layer, const KvRows& rows, Team& team) override;
  Status settle(int layer, Team& team) override;

  // The caches, the reader first; this one is not used any more.
  std::vector<std::unique_ptr<KvCache>> finish() &&;

 private:
  std::vector<std::unique_ptr<KvCache>> others_;
};

}  // namespace kvspan
