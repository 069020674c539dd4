// SPDX-License-Identifier: Apache-2.0
// ggml's threads, asleep between graphs. By default they look for work for a while, a third of a
// second on x86, and take a core from whoever computes meanwhile: a sampler, or another engine that
// is measured beside this one.
#pragma once

#include <ggml-cpu.h>

#include <memory>

namespace kvspan {

struct FreeThreadpool {
  void operator()(ggml_threadpool* pool) const { ggml_threadpool_free(pool); }
};
using Threadpool = std::unique_ptr<ggml_threadpool, FreeThreadpool>;

// Null where they cannot be started.
inline Threadpool make_threadpool(int threads) {
  ggml_threadpool_params params = ggml_threadpool_params_default(threads);
  params.poll = 0;
  return Threadpool(ggml_threadpool_new(&params));
}

}  // namespace kvspan
