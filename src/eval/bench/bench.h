// SPDX-License-Identifier: Apache-2.0
// Speed and memory by context depth, for several subjects in one run: all read the same text, and
// take turns in small rounds, so that whatever else the machine does falls on all of them alike.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/quantile.h"
#include "eval/bench/bench_worker.h"

namespace kvspan {

struct BenchOptions {
  std::string model_path;
  std::vector<BenchSubject> subjects;
  std::vector<std::int32_t> depths;  // increasing
  std::vector<Token> tokens;         // at least the largest depth + 1
  int threads = 1;
  std::int32_t context = 0;  // for llama.cpp, which allocates up front
  int repeats = 24;          // timed decodes at each depth
  std::int32_t block = 512;
  int batch = 1;  // sequences decoded together
  std::int32_t gpu_layers = 0;
};

struct BenchRow {
  BenchSubject subject;
  std::int32_t depth = 0;
  double decode_tok_s = 0.0;   // from the median time, all sequences together
  double decode_spread = 0.0;  // interquartile range / median
  double prefill_tok_s = 0.0;  // over the tokens between the depth before and this one
  double attn_ms = 0.0;        // median time in attention of one decoded token; 0: unknown
  std::uint64_t kv_bytes = 0;  // of all sequences, as the next two
  std::uint64_t kv_bytes_full = 0;
  std::uint64_t shared_bytes = 0;    // of codes that the sequences share
  std::uint64_t peak_rss_bytes = 0;  // of the subject's process, from its start
  std::string code;                  // which code is in use; "" where there is none
};

// How much less memory a row's process took at its peak than that of `full` at the same depth, and
// how much less the ledger counts, codes included. Negative: more.
struct MemoryLess {
  double measured_bytes = 0.0, counted_bytes = 0.0;
};
MemoryLess memory_less(const BenchRow& full, const BenchRow& row);

// Rows by depth, then by subject. `progress` gets what is done so far, of `total` steps.
Result<std::vector<BenchRow>> run_bench(
    const BenchOptions& options,
    const std::function<void(std::size_t done, std::size_t total, std::string_view what)>&
        progress);

double median(std::vector<double> values);

}  // namespace kvspan
