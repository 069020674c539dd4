// SPDX-License-Identifier: Apache-2.0
#include "eval/bench/bench.h"

#include <algorithm>
#include <cmath>

#include "base/expect.h"
#include "base/fail.h"

namespace kvspan {
namespace {

// Decodes of one subject in a row. The first of them, which finds the caches cold and the threads
// asleep after the others' turn, is not counted.
constexpr int kTurn = 6;

struct Times {
  std::vector<double> decode, attention;
  double prefill = 0.0;
};

}  // namespace

MemoryLess memory_less(const BenchRow& full, const BenchRow& row) {
  const auto less = [](std::uint64_t a, std::uint64_t b) {
    return static_cast<double>(a) - static_cast<double>(b);
  };
  return {less(full.peak_rss_bytes, row.peak_rss_bytes),
          less(full.kv_bytes + full.shared_bytes, row.kv_bytes + row.shared_bytes)};
}

double median(std::vector<double> values) {
  return quantile(std::move(values), 0.5);
}

Result<std::vector<BenchRow>> run_bench(
    const BenchOptions& options,
    const std::function<void(std::size_t done, std::size_t total, std::string_view what)>&
        progress) {
  std::vector<std::unique_ptr<BenchWorker>> workers;
  for (const BenchSubject& subject : options.subjects) {
    KVSPAN_TRY(auto worker,
               BenchWorker::start({options.model_path, subject, options.threads, options.context,
                                   options.block, options.tokens, options.batch,
                                   options.gpu_layers}));
    workers.push_back(std::move(worker));
  }
  const std::size_t turns = static_cast<std::size_t>((options.repeats + kTurn - 1) / kTurn);
  const std::size_t total = workers.size() * (static_cast<std::size_t>(options.depths.back()) +
                                              options.depths.size() * turns * (kTurn + 1));
  std::size_t done = 0;
  const auto advance = [&](std::size_t steps, std::string_view what) {
    done += steps;
    if (progress) progress(done, total, what);
  };

  std::vector<BenchRow> rows;
  std::int32_t reached = 0;
  for (const std::int32_t depth : options.depths) {
    std::vector<Times> times(workers.size());
    std::vector<BenchWorker::Reply> last(workers.size());
    for (std::int32_t at = reached; at < depth;) {
      const std::int32_t count = std::min(options.block, depth - at);
      for (std::size_t w = 0; w < workers.size(); ++w) {
        KVSPAN_TRY(last[w], workers[w]->prefill(count));
        times[w].prefill += last[w].seconds;
        advance(static_cast<std::size_t>(count), "prefill");
      }
      at += count;
    }
    for (std::size_t turn = 0; turn < turns; ++turn) {
      for (std::size_t w = 0; w < workers.size(); ++w) {
        for (int i = 0; i <= kTurn; ++i) {
          KVSPAN_TRY(last[w], workers[w]->decode_once());
          if (i == 0) continue;
          times[w].decode.push_back(last[w].seconds);
          times[w].attention.push_back(last[w].attention_seconds);
        }
        advance(kTurn + 1, "decode");
      }
    }
    for (std::size_t w = 0; w < workers.size(); ++w) {
      const double middle = median(times[w].decode);
      BenchRow row;
      row.subject = options.subjects[w];
      row.depth = depth;
      row.decode_tok_s = options.batch / middle;
      row.decode_spread =
          (quantile(times[w].decode, 0.75) - quantile(times[w].decode, 0.25)) / middle;
      row.prefill_tok_s =
          times[w].prefill > 0.0 ? options.batch * (depth - reached) / times[w].prefill : 0.0;
      row.attn_ms = 1e3 * median(times[w].attention);
      row.kv_bytes = last[w].kv_bytes;
      row.kv_bytes_full = last[w].kv_bytes_full;
      row.shared_bytes = last[w].shared_bytes;
      row.peak_rss_bytes = last[w].peak_rss_bytes;
      row.code = last[w].code;
      rows.push_back(std::move(row));
    }
    reached = depth;
  }
  return rows;
}

}  // namespace kvspan
