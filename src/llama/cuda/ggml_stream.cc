// SPDX-License-Identifier: Apache-2.0
#include "llama/cuda/ggml_stream.h"

#include <ggml-backend-impl.h>

#include <mutex>

#include "cuda/device_memory.h"

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
  ggml_backend_event_free(event_);
}

ggml_backend_t GgmlStream::init_backend(ggml_backend_dev_t device, const char* params) {
  ggml_backend_t backend = ggml_init_backend(device, params);
  if (backend == nullptr || listening == nullptr || listening->device_ != device) return backend;
  listening->event_ = ggml_backend_event_new(device);
  if (listening->event_ == nullptr) return backend;
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

void GgmlStream::run_ahead() noexcept {
  unawaited = backend_;
}

Status GgmlStream::before(cudaStream_t stream) {
  if (!known()) return {};  // ggml has waited
  ggml_backend_event_record(event_, backend_);
  return cuda::check(cudaStreamWaitEvent(stream, static_cast<cudaEvent_t>(event_->context), 0),
                     "waiting for ggml");
}

Status GgmlStream::after(cudaStream_t stream) {
  if (!known()) return cuda::check(cudaStreamSynchronize(stream), "waiting for attention");
  KVSPAN_CHECK_OK(cuda::check(cudaEventRecord(static_cast<cudaEvent_t>(event_->context), stream),
                              "marking the end of attention"));
  ggml_backend_event_wait(backend_, event_);
  return {};
}

}  // namespace kvspan
