// SPDX-License-Identifier: Apache-2.0
// ggml's threads, asleep between graphs. By default they look for work for a while, a third of a
// second on x86, and take a core from whoever computes meanwhile: a sampler, or another engine that
// is measured beside this one.
#pragma once

#include <ggml-cpu.h>

#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace kvspan {

struct FreeThreadpool {
  void operator()(ggml_threadpool* pool) const { ggml_threadpool_free(pool); }
};
using Threadpool = std::unique_ptr<ggml_threadpool, FreeThreadpool>;

// Whether the system starts so many threads beside this one. ggml ends the program if it does not.
inline bool can_start(int threads) {
  std::mutex gate;
  std::vector<std::jthread> started;
  const std::lock_guard closed(gate);  // until all are there
  try {
    for (int i = 0; i < threads; ++i) started.emplace_back([&gate] { const std::lock_guard passed(gate); });
  } catch (const std::system_error&) {
    return false;
  }
  return true;
}

// Null if they cannot be started.
inline Threadpool make_threadpool(int threads) {
  if (!can_start(threads - 1)) return nullptr;
  ggml_threadpool_params params = ggml_threadpool_params_default(threads);
  params.poll = 0;
  return Threadpool(ggml_threadpool_new(&params));
}

}  // namespace kvspan
