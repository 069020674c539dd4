// SPDX-License-Identifier: Apache-2.0
// The stream on which ggml computes the nodes of a context, so that another stream can take turns
// with it while the host runs ahead. ggml tells nobody its stream and waits for it before every
// callback; what it does have are backends whose functions stand in a table, and events. While it
// lives, a GgmlStream notes the backend that a context makes for the device on this thread.
#pragma once

#include <cuda_runtime.h>
#include <ggml-backend.h>

#include "kvspan/result.h"

namespace kvspan {

class GgmlStream {
 public:
  explicit GgmlStream(ggml_backend_dev_t device);
  ~GgmlStream();
  GgmlStream(const GgmlStream&) = delete;
  GgmlStream& operator=(const GgmlStream&) = delete;

  // Whether a context has been made. Else the host has to wait in every turn.
  bool known() const noexcept { return backend_ != nullptr; }
  // ggml does not wait for what it computes next.
  void run_ahead() noexcept;
  // What `stream` does from here on comes after all that ggml has been given.
  Status before(cudaStream_t stream);
  // What ggml is given from here on comes after all that `stream` does.
  Status after(cudaStream_t stream);

 private:
  static ggml_backend_t init_backend(ggml_backend_dev_t device, const char* params);
  static void synchronize(ggml_backend_t backend);

  ggml_backend_dev_t device_;
  ggml_backend_t backend_ = nullptr;  // the context's
  ggml_backend_event_t event_ = nullptr;
};

}  // namespace kvspan
