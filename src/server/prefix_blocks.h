// SPDX-License-Identifier: Apache-2.0
// Where the beginnings of prompts that were read before can be had, and left for others. The server
// asks before it computes and offers after; whatever this does, answers stay the same.
#pragma once

#include <cstdint>
#include <span>

#include "kvspan/llama.h"
#include "store/prefix_store.h"

namespace kvspan::server {

// Called by one thread at a time, between decodes.
class PrefixBlocks {
 public:
  virtual ~PrefixBlocks() = default;

  // `tokens` are all those that the sequence is about to have, of which it holds the first
  // caches.tokens(sequence). May load the sequence with more of them, at most all: what it then
  // holds is not computed. Must leave the sequence as it was where nothing is found or anything
  // fails.
  virtual void load(LlamaCaches& caches, std::int32_t sequence,
                    std::span<const std::int32_t> tokens) = 0;

  // The sequence has just been given the last of `tokens`, which are all it holds, as part of a
  // prompt; `prompt_ends` where an answer follows, or some of the prompt's last block.
  virtual void save(const LlamaCaches& caches, std::int32_t sequence,
                    std::span<const std::int32_t> tokens, bool prompt_ends) = 0;

  // From any thread.
  virtual StoreStatistics statistics() const = 0;
};

}  // namespace kvspan::server
