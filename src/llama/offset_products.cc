// SPDX-License-Identifier: Apache-2.0
#include "llama/offset_products.h"

#include <ggml-cpu.h>
#include <traits.h>  // of ggml-cpu's sources

#include <cstdint>
#include <string_view>

#include "llama/block_offsets.h"
#include "llama/pages.h"

namespace kvspan {
namespace {

struct Free {
  void operator()(ggml_context* tensors) const { ggml_free(tensors); }
  void operator()(ggml_backend_buffer* buffer) const { ggml_backend_buffer_free(buffer); }
};

// The product of the Q4_0 part, as ggml computes it, then the offsets.
class OffsetTraits final : public ggml::cpu::tensor_traits {
 public:
  OffsetTraits(ggml::cpu::tensor_traits* product, const BlockOffsets* offsets)
      : product_(product), offsets_(offsets) {}

  bool work_size(int threads, const ggml_tensor* node, std::size_t& size) override {
    return product_->work_size(threads, node, size);
  }
  bool compute_forward(ggml_compute_params* params, ggml_tensor* node) override {
    if (!product_->compute_forward(params, node)) return false;
    ggml_barrier(params->threadpool);  // rows are shared out in other parts here
    const ggml_tensor* x = node->src[1];
    offsets_->add_rows(static_cast<const float*>(x->data),
                       static_cast<std::int64_t>(x->nb[1] / sizeof(float)), x->ne[1], params->ith,
                       params->nth, static_cast<float*>(node->data),
                       static_cast<std::int64_t>(node->nb[1] / sizeof(float)));
    return true;
  }

 private:
  ggml::cpu::tensor_traits* product_;
  const BlockOffsets* offsets_;
};

// Whether ggml multiplies Q4_0 matrices of this shape in the layout.
bool multiplies(ggml_backend_dev_t device, ggml_backend_buffer_type_t layout,
                const ggml_tensor* matrix) {
  const std::unique_ptr<ggml_context, Free> ctx(
      ggml_init({4 * ggml_tensor_overhead(), nullptr, /*no_alloc=*/true}));
  ggml_tensor* weight = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_Q4_0, matrix->ne[0], matrix->ne[1]);
  ggml_tensor* product = ggml_mul_mat(
      ctx.get(), weight, ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, matrix->ne[0], 512));
  // The question is asked of a tensor that lies in such memory; an empty buffer will do.
  const std::unique_ptr<ggml_backend_buffer, Free> buffer(
      ggml_backend_buft_alloc_buffer(layout, 0));
  weight->buffer = buffer.get();
  return ggml_backend_dev_supports_op(device, product);
}

// The file's pages of a weight that has been copied no longer need to be in memory. A weight that
// is not a part of the mapped file stays.
void give_back_mapped(const ggml_tensor* weight) {
  if (std::string_view(ggml_backend_buffer_name(weight->buffer)) != "CPU_Mapped") return;
  give_back_pages(weight->data, ggml_nbytes(weight));
}

}  // namespace

struct OffsetProducts::Split {
  std::unique_ptr<const BlockOffsets> offsets;
  std::unique_ptr<ggml_context, Free> tensors;
  std::unique_ptr<ggml_backend_buffer, Free> buffer;
  std::unique_ptr<OffsetTraits> traits;
  ggml_tensor* weight = nullptr;
};

OffsetProducts::OffsetProducts() {
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

OffsetProducts::~OffsetProducts() = default;

OffsetProducts::Split* OffsetProducts::split_of(const ggml_tensor* weight) {
  const auto [at, is_new] = splits_.try_emplace(weight);
  if (!is_new) return at->second.get();
  const bool mapped = weight->buffer != nullptr && ggml_backend_buffer_is_host(weight->buffer);
  if (!mapped || weight->op != GGML_OP_NONE || !BlockOffsets::fits(weight)) return nullptr;
  for (ggml_backend_buffer_type_t layout : layouts_) {
    if (!multiplies(device_, layout, weight)) continue;
    auto split = std::make_unique<Split>();
    split->tensors.reset(ggml_init({2 * ggml_tensor_overhead(), nullptr, /*no_alloc=*/true}));
    split->weight =
        ggml_new_tensor_2d(split->tensors.get(), GGML_TYPE_Q4_0, weight->ne[0], weight->ne[1]);
    ggml_set_name(split->weight, weight->name);
    split->buffer.reset(ggml_backend_alloc_ctx_tensors_from_buft(split->tensors.get(), layout));
    if (!split->buffer) return nullptr;
    std::vector<std::byte> rest(ggml_nbytes(split->weight));
    split->offsets = std::make_unique<const BlockOffsets>(weight, rest.data());
    ggml_backend_tensor_set(split->weight, rest.data(), 0, rest.size());
    split->traits = std::make_unique<OffsetTraits>(
        static_cast<ggml::cpu::tensor_traits*>(split->weight->extra), split->offsets.get());
    split->weight->extra = split->traits.get();
    give_back_mapped(weight);
    at->second = std::move(split);
    return at->second.get();
  }
  return nullptr;
}

void OffsetProducts::replace(ggml_tensor* node) {
  if (node->op != GGML_OP_MUL_MAT || node->src[0]->type != GGML_TYPE_Q4_1) return;
  const ggml_tensor* x = node->src[1];
  if (x->type != GGML_TYPE_F32 || x->nb[0] != sizeof(float) || x->ne[2] != 1 || x->ne[3] != 1)
    return;
  if (Split* split = split_of(node->src[0])) node->src[0] = split->weight;
}

}  // namespace kvspan
