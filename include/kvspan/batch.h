// SPDX-License-Identifier: Apache-2.0
// A step of many sequences by one team. If the work can be divided evenly, threads take whole
// sequences, which saves the barriers inside a cache, and help each other at the end. All threads
// share the remaining sequences.
//     BatchMemory memory;                                                // once
//     SequenceBatch batch(caches_and_their_new_tokens, threads, memory);   // once per step
//     for every layer: all members of the team call batch.step(layer, part_of, team)
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "kvspan/cache.h"
#include "kvspan/result.h"
#include "kvspan/team.h"

namespace kvspan {

struct SequenceTokens {
  KvCache* cache = nullptr;
  std::int32_t tokens = 0;  // new in this step
};

// A step of one layer for one sequence.
struct SequenceStep {
  KvRows rows;
  Queries queries;
  TensorView<float, 3> out;  // may overlap the memory of any rows of the batch
  bool stores = true;        // false: the rows were stored before and are ignored
  bool settles = true;       // false: the layer attends again in this step
};

// Working memory of a batch's threads. Kept from step to step; used by one batch at a time.
class BatchMemory {
 public:
  BatchMemory();
  ~BatchMemory();
  BatchMemory(BatchMemory&&) noexcept;
  BatchMemory& operator=(BatchMemory&&) noexcept;

 private:
  friend class SequenceBatch;
  struct State;
  std::unique_ptr<State> state_;
};

class SequenceBatch {
 public:
  // Each cache appears once. The caches and the memory outlive the batch; caches have no other step
  // meanwhile.
  SequenceBatch(std::span<const SequenceTokens> sequences, int threads, BatchMemory& memory);
  SequenceBatch(SequenceBatch&&) noexcept;
  ~SequenceBatch();

  // append, attend and settle of one layer for every sequence; part_of(i) describes sequence i. All
  // rows are stored before any output is written. All members call it; it ends with a barrier and
  // returns the same for all. After an error some caches may be ahead of others (kvspan/cache.h). A
  // team of another size than `threads` shares all sequences.
  Status step(int layer, const std::function<SequenceStep(std::size_t)>& part_of, Team& team);

  // For tests: number of sequences that single threads take.
  std::size_t whole() const noexcept;

 private:
  struct Plan;
  std::unique_ptr<Plan> plan_;
};

}  // namespace kvspan
