// SPDX-License-Identifier: Apache-2.0
// cuBLAS as the rest of the library has it.
#pragma once

#include <cublas_v2.h>

#include "base/fail.h"
#include "kvspan/result.h"

namespace kvspan::cuda {

inline Status check_blas(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return {};
  return fail(ErrorCode::kIo, "{}: cuBLAS answers: {}", what, cublasGetStatusString(status));
}

class Blas {
 public:
  Blas() = default;
  Blas(const Blas&) = delete;
  Blas& operator=(const Blas&) = delete;
  ~Blas() {
    if (handle_ != nullptr) cublasDestroy(handle_);
  }
  // Takes memory of the device for its own work.
  Status open() { return check_blas(cublasCreate(&handle_), "starting cuBLAS"); }
  // For calls on a stream.
  Result<cublasHandle_t> on(cudaStream_t stream) const {
    KVSPAN_CHECK_OK(check_blas(cublasSetStream(handle_, stream), "naming a stream"));
    return handle_;
  }

 private:
  cublasHandle_t handle_ = nullptr;
};

}  // namespace kvspan::cuda
