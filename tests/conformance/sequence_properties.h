// SPDX-License-Identifier: Apache-2.0
// The contract of every sequence of every implementation (kvspan/cache.h): properties of its whole
// state, checked by what a user can observe: outputs bit for bit, bytes, the lengths it can be
// truncated to, and saved bytes.
#pragma once

#include <cstdint>
#include <span>

#include "tests/conformance/sequence.h"

namespace kvspan::conformance {

// How far properties reach: the text tokens that they step through, the tokens by which two sequences
// have to continue alike, and the distance of the lengths from which they do. The long run
// (KVSPAN_TEST_ALL set) reaches further, and continues from every length.
struct Reach {
  std::int32_t tokens, ahead, stride;
};
bool is_long_run();
Reach reach();

// A property fails the current test, and says where.
using SequenceProperty = void (*)(const Source& source);

// Saved at any length and loaded, a sequence continues as the original does.
void continues_after_loading(const Source& source);
// It can be truncated to every length from least_tokens on, rejects others and is then unchanged; the
// truncated sequence, a fork of it and a loaded copy continue alike.
void truncates_anywhere(const Source& source);
// However a text is split into calls, the same tokens are encoded alike.
void splits_alike(const Source& source);
// Forks and their originals do not change each other, in any order.
void forks_are_independent(const Source& source);
// Cleared, or truncated to 0, it equals a new one.
void clears_to_new(const Source& source);
// Bytes are the sum of their kinds, and those of a copy or a loaded one are the original's.
void counts_bytes(const Source& source);
// 1 to 16 threads give the same bits.
void threads_agree(const Source& source);

struct NamedSequenceProperty {
  const char* name;
  SequenceProperty check;
};
std::span<const NamedSequenceProperty> sequence_properties();

}  // namespace kvspan::conformance
