// SPDX-License-Identifier: Apache-2.0
// What the attention nodes of one decode work on: which rows of the batch belong to which cache.
// libllama cuts a batch into ubatches, one graph each; a plan says what each holds.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kvspan/batch.h"
#include "kvspan/cache.h"
#include "llama/certificate_samples.h"

namespace kvspan {

// A row of the batch.
struct BatchRow {
  std::int32_t sequence = 0;
  std::int32_t position = 0;
  KvCache* cache = nullptr;  // of the sequence
};

// The rows [begin, end) of a ubatch that belong to one sequence.
struct SequenceRows {
  KvCache* cache = nullptr;
  std::int32_t begin = 0;
  std::int32_t end = 0;
};

struct Ubatch {
  std::vector<std::int32_t> positions;  // of its rows
  std::vector<SequenceRows> sequences;  // rows of each, next to each other
  SequenceBatch batch;                  // the same sequences
};

// How libllama cuts a batch: row by row, or, where other layers keep a recurrent state, equally
// many rows of every sequence at a time.
enum class BatchCut { kByRows, kBySequences };

// Fails where rows of a sequence are not next to each other in a ubatch.
Result<std::vector<Ubatch>> cut_batch(std::span<const BatchRow> rows, std::size_t ubatch,
                                      BatchCut cut, int threads, BatchMemory& memory);

struct DecodeWork {
  std::vector<Ubatch> ubatches;
  std::size_t current = 0;                     // the ubatch being computed
  int threads = 0;                             // that ubatches were cut for
  BatchMemory memory;                          // that they work in
  TeamState team;
  std::optional<Error> error;  // the first failure; later layers then leave the caches alone
  double seconds = 0.0;        // spent in the nodes
  CertificateSamples certificates;
};

// Rows that an attention node stores and reads, as views of the graph's memory.
struct NodeRows {
  TensorView<const float, 3> keys, values;  // [n, kv_heads, dim]
  TensorView<const float, 3> queries;       // [n, query_heads, dim]
  TensorView<float, 3> out;                 // may lie in the memory of keys and values
  bool stores = true;                       // whether keys and values enter the cache here
  bool settles = true;                      // whether this is the layer's last attention of a step
};

// One member's part of a node; all `size` members call it. On failure work.error is set for the
// nodes that follow.
void attend_node(DecodeWork& work, int layer, const NodeRows& rows, int member, int size);

}  // namespace kvspan
