// SPDX-License-Identifier: Apache-2.0
// What the caches of a served model hold, in numbers, for /kv and /metrics.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kvspan/cache.h"
#include "kvspan/llama.h"

namespace kvspan::server {

struct SequenceFigures {
  std::int32_t sequence = 0;
  std::int32_t tokens = 0;
  std::size_t bytes = 0;
};

// Since the server was started.
struct KvCounts {
  std::uint64_t decodes = 0;
  std::uint64_t decoded_tokens = 0;
  std::uint64_t prefix_tokens = 0;    // that blocks of prefixes spared
  std::uint64_t dropped_sequences = 0;  // to keep within the budget
  std::uint64_t restored_tokens = 0;  // read again because their sequence had been dropped
  std::uint64_t states_saved = 0;
  std::uint64_t states_loaded = 0;
  std::uint64_t state_bytes_saved = 0;
  std::uint64_t state_bytes_loaded = 0;
  double save_seconds = 0.0;
  double load_seconds = 0.0;
};

struct KvFigures {
  std::string model;
  std::string recipe;
  std::uint32_t context = 0;  // tokens that a sequence may have
  std::uint32_t most_sequences = 0;
  std::vector<SequenceFigures> sequences;  // those that hold tokens
  std::int64_t tokens = 0;                 // of them all
  CacheBytes bytes;
  std::vector<std::size_t> layer_bytes;
  std::optional<CertificateFigures> certificates;  // where the recipe has them
  std::size_t f16_bytes = 0;  // that as many tokens take at full rank
  std::size_t peak_bytes = 0;
  KvCounts counts;
};

}  // namespace kvspan::server
