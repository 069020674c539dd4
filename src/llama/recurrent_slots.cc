// SPDX-License-Identifier: Apache-2.0
#include "llama/recurrent_slots.h"

#include <algorithm>

#include "base/fail.h"

namespace kvspan {

// The cache's own slot, else the longest unused one, emptied.
llama_seq_id RecurrentSlots::take(const KvCache& cache, llama_memory_t memory) {
  auto slot =
      std::find_if(slots_.begin(), slots_.end(), [&](const Slot& s) { return s.cache == &cache; });
  if (slot == slots_.end()) {
    slot = std::min_element(slots_.begin(), slots_.end(),
                            [](const Slot& a, const Slot& b) { return a.used < b.used; });
  }
  const auto sequence = static_cast<llama_seq_id>(slot - slots_.begin());
  llama_memory_seq_rm(memory, sequence, -1, -1);
  *slot = {&cache, 0, ++time_};
  return sequence;
}

Result<llama_seq_id> RecurrentSlots::of(const KvCache& cache, llama_memory_t memory) {
  if (cache.tokens() == 0) return take(cache, memory);
  const auto slot = std::find_if(slots_.begin(), slots_.end(), [&](const Slot& s) {
    return s.cache == &cache && s.tokens == cache.tokens();
  });
  if (slot == slots_.end()) {
    return fail(
        ErrorCode::kUnsupported,
        "this model has recurrent layers, and their state after {} tokens of this sequence "
        "is not there: a cache of such a model can only go on where it stopped, with at most "
        "{} sequences at a time",
        cache.tokens(), slots_.size());
  }
  slot->used = ++time_;
  return static_cast<llama_seq_id>(slot - slots_.begin());
}

void RecurrentSlots::advance(llama_seq_id sequence, const KvCache& cache) {
  slots_[static_cast<std::size_t>(sequence)].tokens = cache.tokens();
}

void RecurrentSlots::drop(llama_seq_id sequence) {
  slots_[static_cast<std::size_t>(sequence)] = {};
}

Status RecurrentSlots::fork(const KvCache& from, const KvCache& to, llama_memory_t memory) {
  if (from.tokens() == 0) return {};
  KVSPAN_TRY(const llama_seq_id source, of(from, memory));
  const llama_seq_id target = take(to, memory);
  llama_memory_seq_cp(memory, source, target, -1, -1);
  advance(target, to);
  return {};
}

}  // namespace kvspan
