// SPDX-License-Identifier: Apache-2.0
#include "llama/cuda/ggml_stream.h"

#include <ggml-backend-impl.h>

#include <ggml-cuda/common.cuh>
#include <mutex>

namespace kvspan {
namespace {

// The functions that stand behind those put in their places.
ggml_backend_t (*ggml_init_backend)(ggml_backend_dev_t, const char*) = nullptr;
void (*ggml_synchronize)(ggml_backend_t) = nullptr;
std::mutex functions;

// A context is made, and its nodes are computed, by one thread.
thread_local GgmlStream* listening = nullptr;
thread_local ggml_backend_t unawaited = nullptr;

}  // namespace

GgmlStream::GgmlStream(ggml_backend_dev_t device) : device_(device) {
  const std::lock_guard lock(functions);
  if (ggml_init_backend == nullptr) {
    ggml_init_backend = device->iface.init_backend;
    device->iface.init_backend = init_backend;
  }
  listening = this;
}

GgmlStream::~GgmlStream() {
  if (listening == this) listening = nullptr;
}

ggml_backend_t GgmlStream::init_backend(ggml_backend_dev_t device, const char* params) {
  ggml_backend_t backend = ggml_init_backend(device, params);
  if (backend == nullptr || listening == nullptr || listening->device_ != device) return backend;
  const std::lock_guard lock(functions);
  ggml_synchronize = backend->iface.synchronize;
  backend->iface.synchronize = synchronize;
  listening->backend_ = backend;
  listening = nullptr;
  return backend;
}

void GgmlStream::synchronize(ggml_backend_t backend) {
  if (backend == unawaited) {
    unawaited = nullptr;
    return;
  }
  ggml_synchronize(backend);
}

cudaStream_t GgmlStream::get() const noexcept {
  if (backend_ == nullptr) return nullptr;
  const auto& own = *static_cast<const ggml_backend_cuda_context*>(backend_->context);
  return own.streams[own.device][own.curr_stream_no];
}

void GgmlStream::run_ahead() noexcept {
  unawaited = backend_;
}

}  // namespace kvspan
