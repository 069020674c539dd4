// SPDX-License-Identifier: Apache-2.0
#include "llama/recurrent_slots.h"

#include <algorithm>

#include "base/fail.h"

namespace kvspan {

// Whether a live cache goes on from this state.
bool RecurrentSlots::holds_state(const Slot& slot) const noexcept {
  return !slot.life.expired() && slot.tokens > 0 && slot.cache->tokens() == slot.tokens;
}

Result<llama_seq_id> RecurrentSlots::find(const KvCache& cache) const {
  const auto slot = std::find_if(slots_.begin(), slots_.end(), [&](const Slot& s) {
    return s.cache == &cache && holds_state(s);
  });
  if (slot != slots_.end()) return static_cast<llama_seq_id>(slot - slots_.begin());
  return fail(ErrorCode::kUnsupported,
              "this model has recurrent layers, and their state after {} tokens of this sequence is "
              "not there: a cache of such a model can only go on where it stopped",
              cache.tokens());
}

Result<std::vector<llama_seq_id>> RecurrentSlots::find_free(std::size_t count) const {
  std::vector<llama_seq_id> free;
  for (std::size_t i = 0; i < slots_.size() && free.size() < count; ++i) {
    if (!holds_state(slots_[i])) free.push_back(static_cast<llama_seq_id>(i));
  }
  if (free.size() == count) return free;
  return fail(ErrorCode::kOutOfBudget,
              "this model has recurrent layers, whose state {} live sequences keep; supported: {} "
              "sequences at a time (destroy or clear one)",
              slots_.size(), slots_.size());
}

void RecurrentSlots::give(llama_seq_id sequence, KvCache& cache, llama_memory_t memory) {
  llama_memory_seq_rm(memory, sequence, -1, -1);
  slots_[static_cast<std::size_t>(sequence)] = {&cache, cache.lifetime(), 0};
}

Result<std::vector<llama_seq_id>> RecurrentSlots::of(std::span<KvCache* const> batch,
                                                     llama_memory_t memory) {
  const auto empty = static_cast<std::size_t>(std::count_if(
      batch.begin(), batch.end(), [](const KvCache* cache) { return cache->tokens() == 0; }));
  KVSPAN_TRY(const std::vector<llama_seq_id> free, find_free(empty));
  std::vector<llama_seq_id> sequences;
  auto next = free.begin();
  for (const KvCache* cache : batch) {
    if (cache->tokens() == 0) {
      sequences.push_back(*next++);
    } else {
      KVSPAN_TRY(const llama_seq_id own, find(*cache));
      sequences.push_back(own);
    }
  }
  for (std::size_t i = 0; i < batch.size(); ++i) {
    if (batch[i]->tokens() == 0) give(sequences[i], *batch[i], memory);
  }
  return sequences;
}

void RecurrentSlots::advance(llama_seq_id sequence, const KvCache& cache) {
  slots_[static_cast<std::size_t>(sequence)].tokens = cache.tokens();
}

void RecurrentSlots::drop(llama_seq_id sequence) {
  slots_[static_cast<std::size_t>(sequence)] = {};
}

Status RecurrentSlots::fork(const KvCache& from, KvCache& to, llama_memory_t memory) {
  if (from.tokens() == 0) return {};
  KVSPAN_TRY(const llama_seq_id source, find(from));
  KVSPAN_TRY(const std::vector<llama_seq_id> target, find_free(1));
  give(target.front(), to, memory);
  llama_memory_seq_cp(memory, source, target.front(), -1, -1);
  advance(target.front(), to);
  return {};
}

}  // namespace kvspan
