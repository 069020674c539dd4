// SPDX-License-Identifier: Apache-2.0
#include "llama/cuda/ggml_stream.h"

#include <ggml-backend-impl.h>

#include <cstdlib>
#include <ggml-cuda/common.cuh>
#include <mutex>
#include <utility>

namespace kvspan {
namespace {

// The functions that stand behind those put in their places.
ggml_backend_t (*ggml_init_backend)(ggml_backend_dev_t, const char*) = nullptr;
void (*ggml_synchronize)(ggml_backend_t) = nullptr;
std::mutex functions;

// A context is made, and its nodes are computed, by one thread.
thread_local GgmlStream* listening = nullptr;
thread_local ggml_backend_t unawaited = nullptr;
thread_local GgmlStream* counting = nullptr;  // whose backend was computed with last

ggml_backend_cuda_context& context_of(ggml_backend_t backend) {
  return *static_cast<ggml_backend_cuda_context*>(backend->context);
}

}  // namespace

// What stands in for ggml's while a graph is recorded.
struct GgmlStream::Recording {
  cudaStream_t stream = nullptr;
  std::unordered_map<const void*, std::unique_ptr<ggml_cuda_graph>>
      graphs;  // none: ggml makes no graphs of its own
  std::function<void(cudaGraphExec_t)> ended;
};

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
  if (counting == this) counting = nullptr;
  if (recorded_ != nullptr) cudaStreamDestroy(recorded_);
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
  if (counting != nullptr && backend == counting->backend_) {
    ++counting->waits_;
    if (counting->recording()) counting->end_recording();
  }
  ggml_synchronize(backend);
}

cudaStream_t GgmlStream::get() const noexcept {
  if (backend_ == nullptr) return nullptr;
  const ggml_backend_cuda_context& own = context_of(backend_);
  return own.streams[own.device][own.curr_stream_no];
}

void GgmlStream::run_ahead() noexcept {
  unawaited = backend_;
  counting = this;
}

bool GgmlStream::can_record() {
  if (backend_ == nullptr || std::getenv("GGML_CUDA_DISABLE_GRAPHS") != nullptr) return false;
  if (branch_.is_open()) return true;
  // What the model is waiting for comes before what is done beside it.
  int low = 0, high = 0;
  return cudaDeviceGetStreamPriorityRange(&low, &high) == cudaSuccess &&
         cudaStreamCreateWithPriority(&recorded_, cudaStreamNonBlocking, high) == cudaSuccess &&
         branch_.open() == cudaSuccess;
}

cudaError_t GgmlStream::record(std::function<void(cudaGraphExec_t)> ended) {
  const cudaError_t error = cudaStreamBeginCapture(recorded_, cudaStreamCaptureModeRelaxed);
  if (error != cudaSuccess) return error;
  ggml_backend_cuda_context& own = context_of(backend_);
  recording_ = std::make_unique<Recording>();
  recording_->ended = std::move(ended);
  recording_->stream = std::exchange(own.streams[own.device][own.curr_stream_no], recorded_);
  recording_->graphs.swap(own.cuda_graphs);
  counting = this;
  return cudaSuccess;
}

void GgmlStream::end_recording() {
  const std::unique_ptr<Recording> done = std::move(recording_);
  ggml_backend_cuda_context& own = context_of(backend_);
  own.streams[own.device][own.curr_stream_no] = done->stream;
  done->graphs.swap(own.cuda_graphs);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t whole = nullptr;
  if (cudaStreamEndCapture(recorded_, &graph) != cudaSuccess ||
      cudaGraphInstantiate(&whole, graph, cudaGraphInstantiateFlagUseNodePriority) != cudaSuccess) {
    cudaGetLastError();
    whole = nullptr;
  }
  if (graph != nullptr) cudaGraphDestroy(graph);
  done->ended(whole);
}

}  // namespace kvspan
