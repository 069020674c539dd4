// SPDX-License-Identifier: Apache-2.0
// Neighbouring coded segments under the same codes become one. Methods code a few tokens at a time;
// read as they were made, each piece of 64 tokens has memory of its own for every head and side,
// and attention waits for it as long as it computes with it. Joined, a head is a stream of up to
// kJoinedTokens tokens.
// Bits of coefficients, scales and residual norms stay; nothing is decoded. Bytes: those of the
// two, less what rounding to cache lines took twice.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cache/segments/segment_list.h"

namespace kvspan {

// Joins segments[last] with what lies before it, up to `most` tokens in all, while that is not
// longer than it has become: so a
// token is copied at most log2(most / its segment's tokens) times, and where segments end
// depends on the segments that came and on nothing else. May throw std::bad_alloc; then `segments`
// holds the same tokens, joined or not.
void join_before(std::vector<Segment>& segments, std::size_t last, std::int32_t most,
                 const GroupShape& shape, const std::shared_ptr<Ledger>& ledger);

}  // namespace kvspan
