// SPDX-License-Identifier: Apache-2.0
// Memory of the device and what its calls answer, as the rest of the library has them.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <span>
#include <utility>

#include "base/fail.h"
#include "kvspan/result.h"

namespace kvspan::cuda {

// what: the deed that failed, "copying the page tables".
inline Status check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return {};
  cudaGetLastError();  // whoever else uses the device would take it for an error of theirs
  return fail(error == cudaErrorMemoryAllocation ? ErrorCode::kOutOfBudget : ErrorCode::kIo,
              "{}: the device answers: {}", what, cudaGetErrorString(error));
}

// An owned block of device memory. Move-only.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  DeviceMemory(DeviceMemory&& other) noexcept { *this = std::move(other); }
  DeviceMemory& operator=(DeviceMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  ~DeviceMemory() {
    if (data_ != nullptr) cudaFree(data_);
  }

  // Zeros, or no memory at all for 0 bytes.
  static Result<DeviceMemory> create(std::size_t bytes) {
    DeviceMemory memory;
    if (bytes == 0) return memory;
    if (cudaMalloc(&memory.data_, bytes) != cudaSuccess) {
      cudaGetLastError();
      return fail(ErrorCode::kOutOfBudget, "the device has no {} bytes left", bytes);
    }
    memory.bytes_ = bytes;
    KVSPAN_CHECK_OK(check(cudaMemset(memory.data_, 0, bytes), "clearing device memory"));
    return memory;
  }
  template <class T>
  static Result<DeviceMemory> copy_of(std::span<const T> numbers) {
    KVSPAN_TRY(DeviceMemory memory, create(numbers.size_bytes()));
    if (numbers.empty()) return memory;
    KVSPAN_CHECK_OK(check(
        cudaMemcpy(memory.data_, numbers.data(), numbers.size_bytes(), cudaMemcpyHostToDevice),
        "copying tables to the device"));
    return memory;
  }

  template <class T>
  T* as() const noexcept {
    return static_cast<T*>(data_);
  }
  std::size_t bytes() const noexcept { return bytes_; }

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace kvspan::cuda
