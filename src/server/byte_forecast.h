// SPDX-License-Identifier: Apache-2.0
// How many bytes a sequence will take by its number of tokens, before it has any. A recipe's bytes
// do not depend on what the rows are, so they are measured once on made-up ones: some 4,000 tokens,
// then as steep as at the end. A second or two for a small model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kvspan/cache.h"

namespace kvspan::server {

class ByteForecast {
 public:
  // Nothing measured: 0 bytes for any number of tokens.
  ByteForecast() = default;
  // A recipe that cannot be measured this way (one that looks at attention) is taken for f16 rows.
  static ByteForecast measure(const CacheShape& shape, const CacheFactory& factory);

  // The largest number of bytes that a sequence holds while it grows to `tokens` tokens.
  std::size_t bytes(std::int64_t tokens) const noexcept;

 private:
  struct Point {
    std::int64_t tokens;
    std::size_t bytes;  // the most up to here
  };
  std::vector<Point> points_;
  double bytes_per_token_ = 0.0;  // beyond the last
};

}  // namespace kvspan::server
