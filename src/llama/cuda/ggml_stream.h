// SPDX-License-Identifier: Apache-2.0
// The stream on which ggml computes the nodes of a context, so that answers to some of them take
// their turn on it while the host runs ahead. ggml waits for it before every callback, and tells
// nobody which it is; what it does have are backends whose functions stand in a table. While it
// lives, a GgmlStream notes the backend that a context makes for the device on this thread.
//
// What ggml does between record() and the next wait for the backend that nobody announced goes into
// a graph instead of the stream: a stream of its own stands in for ggml's meanwhile.
#pragma once

#include <cuda_runtime.h>
#include <ggml-backend.h>

#include <functional>
#include <memory>

#include "cuda/graph_branch.h"

namespace kvspan {

class GgmlStream {
 public:
  explicit GgmlStream(ggml_backend_dev_t device);
  ~GgmlStream();
  GgmlStream(const GgmlStream&) = delete;
  GgmlStream& operator=(const GgmlStream&) = delete;

  // Null before a context has computed something. It ends with the context.
  cudaStream_t get() const noexcept;
  // The backend whose it is; null before a context has been made.
  ggml_backend_t backend() const noexcept { return backend_; }
  // ggml does not wait for what it computes next.
  void run_ahead() noexcept;
  // Waits that nobody had announced, so far: each of ggml's graphs, or piece of one, ends with one.
  int waits() const noexcept { return waits_; }

  // False: ggml's own graphs are off (GGML_CUDA_DISABLE_GRAPHS), or the device lacks something.
  bool can_record();
  // From now on. ended: called, once, with the graph, when it is whole; null: it could not be
  // recorded.
  cudaError_t record(std::function<void(cudaGraphExec_t)> ended);
  bool recording() const noexcept { return recording_ != nullptr; }
  // A branch of what is recorded (cuda/graph_branch.h), and its end.
  cudaError_t fork(cudaStream_t& branch) { return branch_.fork(recorded_, branch); }
  cudaError_t join() { return branch_.join(recorded_); }

 private:
  struct Recording;
  static ggml_backend_t init_backend(ggml_backend_dev_t device, const char* params);
  static void synchronize(ggml_backend_t backend);
  void end_recording();

  ggml_backend_dev_t device_;
  ggml_backend_t backend_ = nullptr;  // the context's
  int waits_ = 0;
  std::unique_ptr<Recording> recording_;
  cudaStream_t recorded_ = nullptr;  // in place of ggml's
  cuda::GraphBranch branch_;
};

}  // namespace kvspan
