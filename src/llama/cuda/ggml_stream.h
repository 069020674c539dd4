// SPDX-License-Identifier: Apache-2.0
// The stream on which ggml computes the nodes of a context, so that answers to some of them take their
// turn on it while the host runs ahead. ggml waits for it before every callback, and tells nobody which it
// is; what it does have are backends whose functions stand in a table. While it lives, a GgmlStream notes
// the backend that a context makes for the device on this thread.
#pragma once

#include <cuda_runtime.h>
#include <ggml-backend.h>

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

 private:
  static ggml_backend_t init_backend(ggml_backend_dev_t device, const char* params);
  static void synchronize(ggml_backend_t backend);

  ggml_backend_dev_t device_;
  ggml_backend_t backend_ = nullptr;  // the context's
};

}  // namespace kvspan
