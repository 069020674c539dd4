// SPDX-License-Identifier: Apache-2.0
// Which of libllama's sequences holds the recurrent state that belongs to a cache. Models with
// recurrent layers beside attention (Jamba, Qwen3-Next, LFM2, ...) keep that state in libllama's
// memory, for the last token only: it can neither be taken back nor be saved with the cache.
#pragma once

#include <llama.h>

#include <cstdint>
#include <vector>

#include "kvspan/cache.h"

namespace kvspan {

class RecurrentSlots {
 public:
  explicit RecurrentSlots(std::uint32_t count) : slots_(count) {}

  // The sequence whose state is that of the cache's last token; for an empty cache one whose state
  // is empty, the longest unused. Fails where the cache went on, or back, without it.
  Result<llama_seq_id> of(const KvCache& cache, llama_memory_t memory);
  // After a decode: the state is that of the cache's last token now.
  void advance(llama_seq_id sequence, const KvCache& cache);
  // After a failed one: it is of no use.
  void drop(llama_seq_id sequence);
  // A state like `from`'s for its fork.
  Status fork(const KvCache& from, const KvCache& to, llama_memory_t memory);

 private:
  struct Slot {
    const KvCache* cache = nullptr;
    std::int32_t tokens = 0;
    std::uint64_t used = 0;
  };
  llama_seq_id take(const KvCache& cache, llama_memory_t memory);

  std::vector<Slot> slots_;
  std::uint64_t time_ = 0;
};

}  // namespace kvspan
