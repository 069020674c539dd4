// SPDX-License-Identifier: Apache-2.0
#include "llama/cuda/prompt_attention.h"

#include <algorithm>

#include "cuda/device_memory.h"

namespace kvspan {
namespace {

// ggml's kernels that share rows between query heads want whole blocks of so many.
constexpr std::int32_t kRowBlock = 256;

// The rows that any of the queries sees, and where things lie in memory.
struct Plan {
  std::int32_t first, rows;  // rows: whole blocks
  std::size_t values, mask, bytes;

  Plan(const LayerShape& layer, std::int32_t queries, std::int32_t tokens) {
    const std::int32_t earliest = layer.window > 0 ? tokens - queries - layer.window + 1 : 0;
    first = std::max(0, earliest);
    rows = (tokens - first + kRowBlock - 1) / kRowBlock * kRowBlock;
    const auto side = [&](std::int32_t dim) {
      return static_cast<std::size_t>(rows) * static_cast<std::size_t>(layer.kv_heads) *
             static_cast<std::size_t>(dim) * sizeof(ggml_fp16_t);
    };
    values = side(layer.key_dim);
    mask = values + side(layer.value_dim);
    bytes = mask + static_cast<std::size_t>(rows) * static_cast<std::size_t>(queries) *
                       sizeof(ggml_fp16_t);
  }
};

// One attention node with its sources, as a graph of ggml.
class Graph {
 public:
  Graph(const LayerShape& layer, std::int32_t queries, std::int32_t rows) {
    context_ = ggml_init({sizeof memory_, memory_, /*no_alloc=*/true});
    q = ggml_new_tensor_3d(context_, GGML_TYPE_F32, layer.key_dim, queries, layer.query_heads);
    k = rows_tensor(layer.key_dim, rows, layer.kv_heads);
    v = rows_tensor(layer.value_dim, rows, layer.kv_heads);
    mask = ggml_new_tensor_2d(context_, GGML_TYPE_F16, rows, queries);
    node = ggml_flash_attn_ext(context_, q, k, v, mask, layer.logit_scale, 0.0f, layer.soft_cap);
    ggml_prec_set_acc(node, GGML_PREC_F32);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph() { ggml_free(context_); }

  void lies_in(ggml_backend_buffer_t buffer) {
    for (ggml_tensor* tensor : {q, k, v, mask, node}) tensor->buffer = buffer;
  }
  Status compute(ggml_backend_t backend) {
    ggml_cgraph* graph = ggml_new_graph_custom(context_, 16, /*grads=*/false);
    ggml_build_forward_expand(graph, node);
    if (ggml_backend_graph_compute_async(backend, graph) == GGML_STATUS_SUCCESS) return {};
    return fail(ErrorCode::kIo, "ggml could not compute the attention of a prompt");
  }

  ggml_tensor *q, *k, *v, *mask, *node;

 private:
  // [dim, rows, heads] over rows that hold all heads.
  ggml_tensor* rows_tensor(std::int32_t dim, std::int32_t rows, std::int32_t heads) {
    ggml_tensor* tensor = ggml_new_tensor_3d(context_, GGML_TYPE_F16, dim, rows, heads);
    tensor->nb[2] = tensor->nb[1];
    tensor->nb[1] = tensor->nb[2] * static_cast<std::size_t>(heads);
    return tensor;
  }

  alignas(16) char memory_[16384];
  ggml_context* context_;
};

}  // namespace

Result<bool> PromptAttention::ready(ggml_backend_t backend, const LayerShape& layer,
                                    std::int32_t queries, std::int32_t tokens) {
  const Plan plan(layer, queries, tokens);
  const Graph graph(layer, queries, plan.rows);
  if (!ggml_backend_supports_op(backend, graph.node)) return false;
  if (memory_ && ggml_backend_buffer_get_size(memory_.get()) >= plan.bytes) return true;
  // What runs may still read the memory. More than is needed now: prompts grow block by block.
  ggml_backend_synchronize(backend);
  memory_.reset();
  mask_.reset();
  memory_.reset(ggml_backend_alloc_buffer(backend, plan.bytes + plan.bytes / 2));
  if (!memory_) memory_.reset(ggml_backend_alloc_buffer(backend, plan.bytes));
  return memory_ != nullptr;
}

Status PromptAttention::attend(ggml_backend_t backend, DeviceCache& cache, int layer,
                               std::int32_t sequence, std::int32_t tokens,
                               const TensorView<const float, 3>& queries,
                               const TensorView<float, 3>& out, cudaStream_t stream) {
  const LayerShape& shape = cache.shape().layers[static_cast<std::size_t>(layer)];
  const auto count = static_cast<std::int32_t>(queries.shape[0]);
  const Plan plan(shape, count, tokens);
  auto* const memory = static_cast<std::byte*>(ggml_backend_buffer_get_base(memory_.get()));
  std::byte *const keys = memory, *const values = memory + plan.values,
                   *const mask = memory + plan.mask;
  KVSPAN_CHECK_OK(cache.rebuild(layer, sequence, plan.first, {keys, DeviceNumber::kF16},
                                {values, DeviceNumber::kF16}, stream));
  // Rows that no query sees have to be numbers all the same.
  const auto used = static_cast<std::size_t>(tokens - plan.first);
  const auto clear = [&](std::byte* rows, std::int32_t dim) {
    const std::size_t row = static_cast<std::size_t>(shape.kv_heads) *
                            static_cast<std::size_t>(dim) * sizeof(ggml_fp16_t);
    return cuda::check(cudaMemsetAsync(rows + used * row, 0,
                                       (static_cast<std::size_t>(plan.rows) - used) * row, stream),
                       "clearing rows");
  };
  KVSPAN_CHECK_OK(clear(keys, shape.key_dim));
  KVSPAN_CHECK_OK(clear(values, shape.value_dim));
  const CausalMask wanted{plan.first, plan.rows, tokens - count, count, shape.window};
  if (mask_ != wanted || mask_at_ != mask) {
    KVSPAN_CHECK_OK(
        cuda::check(write_mask(wanted, reinterpret_cast<__half*>(mask), stream), "making a mask"));
    mask_ = wanted;
    mask_at_ = mask;
  }
  Graph graph(shape, count, plan.rows);
  graph.lies_in(memory_.get());
  graph.q->data = const_cast<float*>(queries.data);
  graph.q->nb[1] = queries.strides[0] * sizeof(float);
  graph.q->nb[2] = queries.strides[1] * sizeof(float);
  graph.q->nb[3] = graph.q->nb[1] * static_cast<std::size_t>(count);
  graph.k->data = keys;
  graph.v->data = values;
  graph.mask->data = mask;
  graph.node->data = out.data;
  return graph.compute(backend);
}

}  // namespace kvspan
