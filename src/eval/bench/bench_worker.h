// SPDX-License-Identifier: Apache-2.0
// One engine in a process of its own, driven step by step, so that several can be timed in turns
// without sharing memory, threads or peak-memory counts. With layers on a GPU it is in this process:
// a process that has used one cannot be forked.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "llama/engine.h"

namespace kvspan {

// What a worker runs: kvspan with a recipe, or llama.cpp with a KV type.
struct BenchSubject {
  std::string engine;  // "kvspan" or "llama.cpp"
  std::string recipe;  // canonical recipe; for llama.cpp f16, q8_0 or q4_0
};

struct BenchWorkerOptions {
  std::string model_path;
  BenchSubject subject;
  int threads = 1;
  std::int32_t context = 0;
  std::int32_t block = 512;
  std::vector<Token> tokens;  // the text; a worker at depth n has read the first n
  int batch = 1;              // sequences of that text, decoded together
  std::int32_t gpu_layers = 0;
};

class BenchWorker {
 public:
  // Forks, unless layers are on a GPU; call before starting threads. The model is loaded in the
  // child, whose failure to do so is this call's error.
  static Result<std::unique_ptr<BenchWorker>> start(const BenchWorkerOptions& options);
  virtual ~BenchWorker() = default;

  struct Reply {
    double seconds = 0.0;            // of the step
    double attention_seconds = 0.0;  // within it; 0 for llama.cpp, which does not tell
    std::uint64_t kv_bytes = 0;
    std::uint64_t kv_bytes_full = 0;
    std::uint64_t shared_bytes = 0;  // of codes that the sequences share, once
    std::uint64_t peak_rss_bytes = 0;
    char code[400] = {};  // which code is in use (api/code_source.h); cut off where it is longer
  };
  // Reads the next `count` tokens of the text, into one sequence after the other.
  Result<Reply> prefill(std::int32_t count) { return count > 0 ? ask(count) : Reply{}; }
  // Decodes one more token of every sequence in one pass, then forgets it again.
  Result<Reply> decode_once() { return ask(0); }

 private:
  // n > 0: prefill n tokens, 0: decode once.
  virtual Result<Reply> ask(std::int32_t command) = 0;
};

}  // namespace kvspan
