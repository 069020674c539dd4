// SPDX-License-Identifier: Apache-2.0
// Which of libllama's sequences holds the recurrent state that belongs to a cache. Models with
// recurrent layers beside attention (Jamba, Qwen3-Next, LFM2, ...) keep that state in libllama's
// memory, for the last token only: it can neither be taken back nor be saved with the cache.
//
// A slot belongs to its cache for as long as the cache lives and goes on from that state. It is free
// when the cache has been destroyed, emptied or truncated. A live cache never loses its slot to another.
#pragma once

#include <llama.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kvspan/cache.h"

namespace kvspan {

class RecurrentSlots {
 public:
  explicit RecurrentSlots(std::uint32_t count) : slots_(count) {}

  // For each cache of a batch, the sequence whose state is that of the cache's last token; for an
  // empty cache a free one, its state emptied. Fails if a cache went on, or back, without its state,
  // and if too few slots are free; then no slot has changed.
  Result<std::vector<llama_seq_id>> of(std::span<KvCache* const> batch, llama_memory_t memory);
  // After a decode: the state is that of the cache's last token now.
  void advance(llama_seq_id sequence, const KvCache& cache);
  // After a failed one: it is of no use.
  void drop(llama_seq_id sequence);
  // A state like `from`'s for its fork.
  Status fork(const KvCache& from, KvCache& to, llama_memory_t memory);

 private:
  struct Slot {
    const KvCache* cache = nullptr;
    std::weak_ptr<const void> life;  // of the cache, whose address another may have later
    std::int32_t tokens = 0;         // whose state this is
  };
  bool holds_state(const Slot& slot) const noexcept;
  Result<llama_seq_id> find(const KvCache& cache) const;
  // The sequences of `count` free slots.
  Result<std::vector<llama_seq_id>> find_free(std::size_t count) const;
  void give(llama_seq_id sequence, KvCache& cache, llama_memory_t memory);

  std::vector<Slot> slots_;
};

}  // namespace kvspan
