// SPDX-License-Identifier: Apache-2.0
#include "cuda/kernels/prepare.h"

namespace kvspan::cuda {

cudaError_t launch_prepare(const AttendCall& call, int processors, cudaStream_t stream) {
  if (const cudaError_t error = launch_fold_means(call, stream); error != cudaSuccess) return error;
  const bool folds = call.groups > 0 && call.mean_terms > 0 && call.total_means > 0;
  if (const cudaError_t error = launch_attend_rows(call, folds, stream); error != cudaSuccess) {
    return error;
  }
  return launch_move_queries(call, processors, folds || call.total_row_parts > 0, stream);
}

}  // namespace kvspan::cuda
