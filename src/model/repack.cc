// SPDX-License-Identifier: Apache-2.0
#include "model/repack.h"

#include <ggml-cpu.h>

namespace kvspan {
namespace {

// Whether ggml multiplies matrices of this type and shape in the layout.
bool multiplies(ggml_backend_dev_t device, ggml_backend_buffer_type_t layout,
                const ggml_tensor* matrix, ggml_type type) {
  ggml_context* ctx = ggml_init({4 * ggml_tensor_overhead(), nullptr, /*no_alloc=*/true});
  ggml_tensor* weight = ggml_new_tensor_2d(ctx, type, matrix->ne[0], matrix->ne[1]);
  ggml_tensor* product =
      ggml_mul_mat(ctx, weight, ggml_new_tensor_2d(ctx, GGML_TYPE_F32, matrix->ne[0], 512));
  // The question is asked of a tensor that lies in such memory; an empty buffer will do.
  weight->buffer = ggml_backend_buft_alloc_buffer(layout, 0);
  const bool answer = ggml_backend_dev_supports_op(device, product);
  ggml_backend_buffer_free(weight->buffer);
  ggml_free(ctx);
  return answer;
}

}  // namespace

Repacker::Repacker() {
  ggml_backend_reg_t cpu = ggml_backend_cpu_reg();
  device_ = ggml_backend_reg_dev_get(cpu, 0);
  const auto extra = reinterpret_cast<ggml_backend_dev_get_extra_bufts_t>(
      ggml_backend_reg_get_proc_address(cpu, "ggml_backend_dev_get_extra_bufts"));
  if (extra == nullptr) return;
  for (ggml_backend_buffer_type_t* layout = extra(device_); layout != nullptr && *layout;
       ++layout) {
    layouts_.push_back(*layout);
  }
}

Repacker::~Repacker() = default;

ggml_backend_buffer_type_t Repacker::layout_of(const ggml_tensor* matrix, ggml_type type) const {
  for (ggml_backend_buffer_type_t layout : layouts_) {
    if (multiplies(device_, layout, matrix, type)) return layout;
  }
  return nullptr;
}

ggml_tensor* Repacker::copy(const ggml_tensor* matrix, ggml_type type, const void* data,
                            ggml_backend_buffer_type_t layout) {
  std::unique_ptr<ggml_context, Free> ctx(
      ggml_init({2 * ggml_tensor_overhead(), nullptr, /*no_alloc=*/true}));
  ggml_tensor* copy = ggml_new_tensor_2d(ctx.get(), type, matrix->ne[0], matrix->ne[1]);
  ggml_set_name(copy, matrix->name);
  std::unique_ptr<ggml_backend_buffer, Free> buffer(
      ggml_backend_alloc_ctx_tensors_from_buft(ctx.get(), layout));
  if (!buffer) return nullptr;
  ggml_backend_tensor_set(copy, data, 0, ggml_nbytes(copy));
  tensors_.push_back(std::move(ctx));
  buffers_.push_back(std::move(buffer));
  return copy;
}

Matrix Repacker::repack(ggml_tensor* matrix) {
  if (ggml_backend_buffer_type_t layout = layout_of(matrix, matrix->type)) {
    ggml_tensor* weight = copy(matrix, matrix->type, matrix->data, layout);
    return {weight != nullptr ? weight : matrix};
  }
  if (!BlockOffsets::fits(matrix)) return {matrix};
  ggml_backend_buffer_type_t layout = layout_of(matrix, GGML_TYPE_Q4_0);
  if (layout == nullptr) return {matrix};
  std::vector<std::byte> rest(ggml_row_size(GGML_TYPE_Q4_0, ggml_nelements(matrix)));
  auto offsets = std::make_unique<const BlockOffsets>(matrix, rest.data());
  ggml_tensor* weight = copy(matrix, GGML_TYPE_Q4_0, rest.data(), layout);
  if (weight == nullptr) return {matrix};
  offsets_.push_back(std::move(offsets));
  return {weight, offsets_.back().get()};
}

}  // namespace kvspan
