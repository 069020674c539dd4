// SPDX-License-Identifier: Apache-2.0
// What the server puts into a llama_batch_ext, which is opaque: its handle is one of these.
#pragma once

#include <llama.h>

#include <cstdint>
#include <string>
#include <vector>

namespace kvspan::server {

struct RecordedRow {
  llama_token token = LLAMA_TOKEN_NULL;
  llama_pos position = 0;
  llama_seq_id sequence = 0;
  bool output = false;
};

struct BatchRecord {
  llama_batch_ext* native = nullptr;  // of a context on libllama's own memory; then the rest is unused
  std::size_t most = 0;               // rows
  std::vector<RecordedRow> rows;
  std::string refused;  // why the caches cannot take it; empty: they can

  static BatchRecord* of(llama_batch_ext* handle) { return reinterpret_cast<BatchRecord*>(handle); }
  llama_batch_ext* handle() { return reinterpret_cast<llama_batch_ext*>(this); }
};

}  // namespace kvspan::server
