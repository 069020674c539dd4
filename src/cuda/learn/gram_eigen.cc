// SPDX-License-Identifier: Apache-2.0
// Gram matrices by cuBLAS, eigenproblems by cuSOLVER's batched solver. In memory that rises by rows, a
// block of rows [tokens, dim] is what cuBLAS sees as a matrix [dim, tokens] that rises by columns: the Gram
// matrix is that times its transpose, and column i of cuSOLVER's vectors is our row i.
#include <cusolverDn.h>

#include <memory>
#include <vector>

#include "base/fail.h"
#include "cuda/blas.h"
#include "cuda/device_memory.h"
#include "kvspan/cuda.h"

namespace kvspan {
namespace {

Status check_solver(cusolverStatus_t status, const char* what) {
  if (status == CUSOLVER_STATUS_SUCCESS) return {};
  return fail(ErrorCode::kIo, "{}: cuSOLVER answers with status {}", what, static_cast<int>(status));
}

cudaDataType_t gram_number(DeviceNumber number) {
  return number == DeviceNumber::kF32 ? CUDA_R_32F : number == DeviceNumber::kF16 ? CUDA_R_16F : CUDA_R_16BF;
}

}  // namespace

class DeviceGramEigen::Impl {
 public:
  Impl(std::int32_t blocks, std::int32_t dim) : blocks_(blocks), dim_(dim) {}
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() {
    if (params_ != nullptr) cusolverDnDestroyParams(params_);
    if (solver_ != nullptr) cusolverDnDestroy(solver_);
  }

  Status open() {
    KVSPAN_CHECK_OK(blas_.open());
    KVSPAN_CHECK_OK(check_solver(cusolverDnCreate(&solver_), "starting cuSOLVER"));
    KVSPAN_CHECK_OK(check_solver(cusolverDnCreateParams(&params_), "starting cuSOLVER"));
    const auto count = static_cast<std::size_t>(blocks_), n = static_cast<std::size_t>(dim_);
    KVSPAN_TRY(matrices_, cuda::DeviceMemory::create(count * n * n * sizeof(float)));
    KVSPAN_TRY(values_, cuda::DeviceMemory::create(count * n * sizeof(float)));
    KVSPAN_TRY(info_, cuda::DeviceMemory::create(count * sizeof(int)));
    std::size_t device_bytes = 0, host_bytes = 0;
    KVSPAN_CHECK_OK(check_solver(
        cusolverDnXsyevBatched_bufferSize(solver_, params_, CUSOLVER_EIG_MODE_VECTOR,
                                          CUBLAS_FILL_MODE_LOWER, dim_, CUDA_R_32F,
                                          matrices_.as<float>(), dim_, CUDA_R_32F, values_.as<float>(),
                                          CUDA_R_32F, &device_bytes, &host_bytes, blocks_),
        "sizing eigenproblems"));
    KVSPAN_TRY(work_, cuda::DeviceMemory::create(device_bytes));
    host_work_.resize(host_bytes);
    return {};
  }

  Status gram(std::int32_t first, std::int32_t heads, std::int32_t tokens, const DeviceRows& rows,
              cudaStream_t stream) {
    if (first < 0 || heads < 1 || first > blocks_ - heads || tokens < 1) {
      return fail(ErrorCode::kInvalidArgument,
                  "blocks {} to {} of {} rows; there are {} blocks, of at least one row", first,
                  first + heads - 1, tokens, blocks_);
    }
    const std::int64_t head_stride = rows.head_stride != 0 ? rows.head_stride : dim_;
    const std::int64_t token_stride = rows.token_stride != 0 ? rows.token_stride : std::int64_t{heads} * dim_;
    const float one = 1.0f, zero = 0.0f;
    const std::int64_t size = std::int64_t{dim_} * dim_;
    const cudaDataType_t number = gram_number(rows.number);
    KVSPAN_TRY(cublasHandle_t blas, blas_.on(stream));
    return cuda::check_blas(
        cublasGemmStridedBatchedEx(blas, CUBLAS_OP_N, CUBLAS_OP_T, dim_, dim_, tokens, &one, rows.data,
                                   number, static_cast<int>(token_stride), head_stride, rows.data, number,
                                   static_cast<int>(token_stride), head_stride, &zero,
                                   matrices_.as<float>() + first * size, CUDA_R_32F, dim_, size, heads,
                                   CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
        "making Gram matrices");
  }

  Status solve(cudaStream_t stream) {
    KVSPAN_CHECK_OK(check_solver(cusolverDnSetStream(solver_, stream), "naming a stream"));
    return check_solver(
        cusolverDnXsyevBatched(solver_, params_, CUSOLVER_EIG_MODE_VECTOR, CUBLAS_FILL_MODE_LOWER, dim_,
                               CUDA_R_32F, matrices_.as<float>(), dim_, CUDA_R_32F, values_.as<float>(),
                               CUDA_R_32F, work_.as<std::byte>(), work_.bytes(), host_work_.data(),
                               host_work_.size(), info_.as<int>(), blocks_),
        "solving eigenproblems");
  }

  Status wait(cudaStream_t stream) const {
    std::vector<int> info(static_cast<std::size_t>(blocks_));
    KVSPAN_CHECK_OK(cuda::check(cudaMemcpyAsync(info.data(), info_.as<int>(), info.size() * sizeof(int),
                                                cudaMemcpyDeviceToHost, stream),
                                "reading what eigenproblems say"));
    KVSPAN_CHECK_OK(cuda::check(cudaStreamSynchronize(stream), "waiting for eigenproblems"));
    for (std::size_t i = 0; i < info.size(); ++i) {
      if (info[i] != 0) {
        return fail(ErrorCode::kInvalidArgument,
                    "the eigenproblem of block {} did not converge; rows must be finite numbers", i);
      }
    }
    return {};
  }

  const float* values() const { return values_.as<float>(); }
  const float* vectors() const { return matrices_.as<float>(); }

 private:
  std::int32_t blocks_, dim_;
  cuda::Blas blas_;
  cusolverDnHandle_t solver_ = nullptr;
  cusolverDnParams_t params_ = nullptr;
  cuda::DeviceMemory matrices_, values_, info_, work_;
  std::vector<std::byte> host_work_;
};

DeviceGramEigen::DeviceGramEigen(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
DeviceGramEigen::~DeviceGramEigen() = default;

Result<std::unique_ptr<DeviceGramEigen>> DeviceGramEigen::create(std::int32_t blocks, std::int32_t dim) {
  if (blocks < 1 || dim < 1 || dim > 1024) {
    return fail(ErrorCode::kInvalidArgument,
                "{} eigenproblems of {} numbers; allowed: at least one, of 1 to 1024 numbers", blocks, dim);
  }
  auto impl = std::make_unique<Impl>(blocks, dim);
  KVSPAN_CHECK_OK(impl->open());
  return std::unique_ptr<DeviceGramEigen>(new DeviceGramEigen(std::move(impl)));
}

Status DeviceGramEigen::gram(std::int32_t first, std::int32_t heads, std::int32_t tokens,
                             const DeviceRows& rows, DeviceStream stream) {
  return impl_->gram(first, heads, tokens, rows, static_cast<cudaStream_t>(stream));
}
Status DeviceGramEigen::solve(DeviceStream stream) {
  return impl_->solve(static_cast<cudaStream_t>(stream));
}
Status DeviceGramEigen::wait(DeviceStream stream) const {
  return impl_->wait(static_cast<cudaStream_t>(stream));
}
const float* DeviceGramEigen::values() const noexcept { return impl_->values(); }
const float* DeviceGramEigen::vectors() const noexcept { return impl_->vectors(); }

}  // namespace kvspan
