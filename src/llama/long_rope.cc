// SPDX-License-Identifier: Apache-2.0
#include "llama/long_rope.h"

#include "base/fail.h"
#include "llama/gguf_file.h"

namespace kvspan {
namespace {

constexpr const char* kLong = "rope_factors_long.weight";

}  // namespace

Status LongRope::read(const std::string& model_path) {
  KVSPAN_TRY(const auto file, GgufFile::open(model_path));
  const ggml_tensor* found = file->find_tensor(kLong);
  if (found == nullptr || found->type != GGML_TYPE_F32) {
    return fail(ErrorCode::kUnsupported, "'{}' has no f32 tensor '{}'", model_path, kLong);
  }
  tensors_.reset(ggml_init({ggml_tensor_overhead(), nullptr, /*no_alloc=*/true}));
  ggml_tensor* factors = ggml_new_tensor_1d(tensors_.get(), GGML_TYPE_F32, found->ne[0]);
  ggml_set_name(factors, kLong);
  memory_.reset(
      ggml_backend_alloc_ctx_tensors_from_buft(tensors_.get(), ggml_backend_cpu_buffer_type()));
  if (!memory_) return fail(ErrorCode::kOutOfBudget, "no memory for '{}'", kLong);
  ggml_backend_tensor_set(factors, found->data, 0, ggml_nbytes(factors));
  long_factors_ = factors;
  return {};
}

void LongRope::replace(ggml_tensor* node) const noexcept {
  if (long_factors_ == nullptr || node->op != GGML_OP_ROPE || node->src[2] == nullptr) return;
  if (node->src[2]->name == kShortFactors) node->src[2] = long_factors_;
}

}  // namespace kvspan
