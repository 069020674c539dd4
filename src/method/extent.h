// SPDX-License-Identifier: Apache-2.0
// Positions of a group's tokens: which have come, and how far the method has dealt with them. The
// group owns its extent and saves it as it is; stores, policies and selectors consult it, and infer
// nothing from the tokens that happen to be held.
//     first .. sink_end        the sink (Group::sink_end)
//     sink_end .. encoded_end  in the stores that the method added, but for escapes
//     .. settled_end           dealt with: encoded segments, rows that stay, rows held at 8 bits
//     settled_end .. next      waiting
#pragma once

#include <cstdint>

namespace kvspan {

struct Extent {
  std::int32_t first = 0;  // of the sequence's tokens; `next` if none has come
  std::int32_t encoded_end = 0;
  std::int32_t settled_end = 0;
  std::int32_t next = 0;  // one beyond the last token that came, held or evicted
  // Tokens have been evicted that a query before this position would see, or because of tokens
  // before it: the smallest truncation. 0: none.
  std::int32_t evicted_end = 0;

  bool empty() const noexcept { return first == next; }
  bool operator==(const Extent&) const = default;
};

}  // namespace kvspan
