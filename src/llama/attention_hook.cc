// SPDX-License-Identifier: Apache-2.0
#include "llama/attention_hook.h"

#include <ggml-backend.h>

#include <cstring>

#include "base/fail.h"
#include "llama/graph_nodes.h"

namespace kvspan {
namespace {

// FLASH_ATTN_EXT uses sources 0 to 4: queries, keys, values, mask and sinks.
constexpr int kKeyRows = 5, kValueRows = 6;
// Of nodes that a device answers, the nodes that would have stored those rows.
constexpr int kKeyStore = 7, kValueStore = 8;

std::size_t at(std::int64_t n) {
  return static_cast<std::size_t>(n);
}

// Op and parameters of a custom node, as ggml itself makes them: their layout is its own affair.
void become_custom(ggml_tensor* node, ggml_custom_op_t function, void* userdata) {
  alignas(16) char memory[1024];
  ggml_context* ctx = ggml_init({sizeof memory, memory, /*no_alloc=*/true});
  const ggml_tensor* pattern = ggml_custom_4d(ctx, GGML_TYPE_F32, 1, 1, 1, 1, nullptr, 0, function,
                                              GGML_N_TASKS_MAX, userdata);
  node->op = pattern->op;
  std::memcpy(node->op_params, pattern->op_params, sizeof node->op_params);
  ggml_free(ctx);
}

// Rows that a SET_ROWS node stores: [heads * dim, n], of which `width` numbers of a head are
// wanted.
TensorView<const float, 3> stored_rows(const ggml_tensor* rows, std::int32_t heads,
                                       std::int32_t width) {
  return {static_cast<const float*>(rows->data),
          {at(rows->ne[1]), at(heads), at(width)},
          {rows->nb[1] / sizeof(float), at(rows->ne[0]) / at(heads), 1}};
}

// A node that a device answers is nothing to ggml. It stays so in a graph that is used again.
bool left_to_device(const ggml_tensor* node) {
  return node->op == GGML_OP_NONE && node->src[kKeyStore] != nullptr;
}

void leave_to_device(ggml_tensor* node, ggml_tensor* keys, ggml_tensor* values) {
  node->src[kKeyRows] = keys->src[0];
  node->src[kValueRows] = values->src[0];
  node->src[kKeyStore] = keys;
  node->src[kValueStore] = values;
  node->op = keys->op = values->op = GGML_OP_NONE;
}

// Where a graph is used again for caches of the host. Nothing of it has been computed yet since the
// attention before.
void take_from_device(ggml_tensor* node) {
  for (const int store : {kKeyStore, kValueStore}) node->src[store]->op = GGML_OP_SET_ROWS;
  node->op = GGML_OP_FLASH_ATTN_EXT;
  for (const int source : {kKeyRows, kValueRows, kKeyStore, kValueStore}) {
    node->src[source] = nullptr;
  }
}

// What we make of a node is remembered behind the parameters that ggml keeps in it: zeros in a new
// graph, and left alone as long as the graph is used.
constexpr std::size_t kMark = GGML_MAX_OP_PARAMS - sizeof(void*);

const void* mark_of(const ggml_tensor* node) {
  const void* mark = nullptr;
  std::memcpy(&mark, reinterpret_cast<const std::byte*>(node->op_params) + kMark, sizeof mark);
  return mark;
}

void set_mark(ggml_tensor* node, const void* mark) {
  std::memcpy(reinterpret_cast<std::byte*>(node->op_params) + kMark, &mark, sizeof mark);
}

// The node whose result a tensor is, or looks at.
const ggml_tensor* maker_of(const ggml_tensor* tensor) {
  while (is_view(tensor) && tensor->src[0] != nullptr) tensor = tensor->src[0];
  return tensor;
}

bool on_host(const ggml_tensor* node) {
  const ggml_tensor* memory = memory_of(node);
  return memory->buffer != nullptr && ggml_backend_buffer_is_host(memory->buffer);
}

// [dim, n, heads] of queries or of libllama's own memory, as the attention node sees it, to dense
// [n, heads, dim].
void copy_rows(const ggml_tensor* from, std::size_t n, std::vector<float>& to) {
  const std::size_t dim = at(from->ne[0]), heads = at(from->ne[2]);
  const std::size_t bytes = ggml_row_size(from->type, from->ne[0]);
  to.resize(n * heads * dim);
  // In one piece: each copy from a device takes microseconds.
  std::vector<std::byte> all((n - 1) * from->nb[1] + (heads - 1) * from->nb[2] + bytes);
  ggml_backend_tensor_get(from, all.data(), 0, all.size());
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t h = 0; h < heads; ++h) {
      const std::byte* row = all.data() + i * from->nb[1] + h * from->nb[2];
      float* out = to.data() + (i * heads + h) * dim;
      if (from->type == GGML_TYPE_F32) {
        std::memcpy(out, row, bytes);
      } else {
        ggml_get_type_traits(from->type)->to_float(row, out, from->ne[0]);
      }
    }
  }
}

}  // namespace

void AttentionHook::set_model(ProbedModel model) {
  model_ = std::move(model);
  layer_of_.clear();
  nodes_.clear();
  watched_.clear();
  for (std::size_t i = 0; i < model_.layers.size(); ++i) {
    const AttentionLayer& layer = model_.layers[i];
    const int index = static_cast<int>(i);
    layer_of_[layer.key_memory] = index;
    const bool is_last = i == model_.last_layer;
    std::vector<Node>& nodes = nodes_.emplace_back();
    for (int read = 1; read <= layer.reads; ++read) {
      const bool settles = read == layer.reads;
      nodes.push_back({this, index, read == 1, settles, settles && is_last});
    }
    if (!layer.trace.input.empty()) watched_.insert({layer.trace.input, {index, false, false}});
    // The trace is that of the first read.
    if (!layer.trace.post_norm_input.empty()) {
      watched_.insert({layer.trace.post_norm_input, {index, true, nodes.front().last}});
    }
  }
}

bool AttentionHook::on_node(ggml_tensor* node, bool ask, void* hook) {
  auto& self = *static_cast<AttentionHook*>(hook);
  return ask ? self.ask(node) : self.computed(node);
}

bool AttentionHook::ask(ggml_tensor* node) {
  products.replace(node);
  long_rope.replace(node);
  if (probe_ != nullptr) {
    probe_->see(node);
    return false;
  }
  if (first_node_due_ && device_ != nullptr && !is_view(node) && device_->reads(node)) {
    first_node_due_ = false;
    if (ask_first(node)) return true;
  }
  if (device_ != nullptr && device_->recording() && query_makers_.contains(node)) {
    device_->announce();
    return true;
  }
  if (node->op == GGML_OP_MUL_MAT_ID) graph_waits_ = true;
  if (node->op == GGML_OP_SET_ROWS) stores_[memory_of(node)] = {node, 0};
  if (left_to_device(node)) {
    if (held_by_device(node)) {
      device_->announce();
      return true;
    }
    for (const int store : {kKeyStore, kValueStore}) {
      stores_[memory_of(node->src[store])].node = node->src[store];
    }
    take_from_device(node);
  }
  if (node->op == GGML_OP_FLASH_ATTN_EXT && ask_attention(node)) return true;
  return observer_ != nullptr && watched_.contains(node->name);
}

// The first node of a graph on the device. One that this hook has seen before has a mark, since
// libllama makes graphs of fresh nodes.
bool AttentionHook::ask_first(ggml_tensor* node) {
  if (mark_of(node) != this) {
    set_mark(node, this);
    query_makers_.clear();
    graph_waits_ = false;
    device_->graph_is_new();
    return false;
  }
  const bool held =
      work.current < work.ubatches.size() && device_->holds(work.ubatches[work.current]);
  if (observer_ != nullptr || !held || graph_waits_ || query_makers_.empty()) return false;
  if (!device_->may_record(work.ubatches[work.current])) return false;
  stopped_at_ = node;
  device_->announce();
  return true;
}

// ggml has stopped behind the first node. Whether it goes on.
bool AttentionHook::begin_step() {
  stopped_at_ = nullptr;
  std::size_t nodes = 0;
  for (const std::vector<Node>& of_layer : nodes_) nodes += of_layer.size();
  auto step = device_->begin_step(work.ubatches[work.current], nodes);
  if (!step) {
    work.error = std::move(step).error();
    return false;
  }
  if (*step != DeviceAnswer::Step::kReplayed) return true;
  ++work.current;
  return false;
}

bool AttentionHook::held_by_device(const ggml_tensor* node) const {
  return device_ != nullptr && work.current < work.ubatches.size() && device_->reads(node) &&
         device_->holds(work.ubatches[work.current]);
}

// Which attention the node is: the first node behind SET_ROWS is the first that reads those rows.
// Null, with work.error, for one that the probe did not see.
const AttentionHook::Node* AttentionHook::node_at(ggml_tensor* node) {
  if (const void* mark = mark_of(node)) return static_cast<const Node*>(mark);
  const ggml_tensor* key_memory = memory_of(node->src[1]);
  const auto layer = layer_of_.find(key_memory);
  const auto keys = stores_.find(key_memory), values = stores_.find(memory_of(node->src[2]));
  if (layer != layer_of_.end() && keys != stores_.end() && values != stores_.end()) {
    const std::vector<Node>& nodes = nodes_[static_cast<std::size_t>(layer->second)];
    if (const std::size_t read = keys->second.reads++; read < nodes.size()) {
      set_mark(node, &nodes[read]);
      return &nodes[read];
    }
  }
  work.error = fail(ErrorCode::kUnsupported, "attention node '{}' is not one that the probe saw",
                    node->name);
  return nullptr;
}

// Whether ggml is to stop behind the node: a device answers it, or it is computed as it is, to be
// written over.
bool AttentionHook::ask_attention(ggml_tensor* node) {
  const Node* which = node_at(node);
  if (which == nullptr) return false;
  ggml_tensor* keys = stores_.at(memory_of(node->src[1])).node;
  ggml_tensor* values = stores_.at(memory_of(node->src[2])).node;
  if (held_by_device(node)) {
    leave_to_device(node, keys, values);
    device_->announce();
    return true;
  }
  if (overwrite_ || !on_host(node)) return true;
  node->src[kKeyRows] = keys->src[0];
  node->src[kValueRows] = values->src[0];
  keys->op = GGML_OP_NONE;
  values->op = GGML_OP_NONE;
  become_custom(node, compute, const_cast<Node*>(which));
  return false;
}

NodeRows AttentionHook::rows_of(const Node& node, const ggml_tensor* tensor) const {
  const LayerShape& shape = model_.shape.layers[static_cast<std::size_t>(node.layer)];
  const ggml_tensor* q = tensor->src[0];
  NodeRows rows;
  rows.queries = {static_cast<const float*>(q->data),
                  {at(q->ne[1]), at(q->ne[2]), at(q->ne[0])},
                  {q->nb[1] / sizeof(float), q->nb[2] / sizeof(float), 1}};
  rows.keys = stored_rows(tensor->src[kKeyRows], shape.kv_heads, shape.key_dim);
  rows.values = stored_rows(tensor->src[kValueRows], shape.kv_heads, shape.value_dim);
  rows.out = {static_cast<float*>(tensor->data),
              {at(tensor->ne[2]), at(tensor->ne[1]), at(tensor->ne[0])},
              {tensor->nb[2] / sizeof(float), tensor->nb[1] / sizeof(float), 1}};
  rows.stores = node.stores;
  rows.settles = node.settles;
  return rows;
}

void AttentionHook::compute(ggml_tensor* tensor, int member, int size, void* userdata) {
  const Node& node = *static_cast<const Node*>(userdata);
  AttentionHook& self = *node.hook;
  attend_node(self.work, node.layer, self.rows_of(node, tensor), member, size);
  // attend_node has ended with a barrier, and ggml waits for all before the next node.
  if (member == 0) self.finish_node(node, static_cast<int>(tensor->ne[2]));
}

// After the last node of a graph the next ubatch begins.
void AttentionHook::finish_node(const Node& node, int rows) {
  if (!work.error &&
      (work.current >= work.ubatches.size() ||
       work.ubatches[work.current].positions.size() != static_cast<std::size_t>(rows))) {
    work.error = fail(ErrorCode::kUnsupported,
                     "libllama cut the batch otherwise than expected: {} rows in layer {}", rows,
                     node.layer);
  }
  if (node.last) ++work.current;
}

// Whether ggml goes on.
bool AttentionHook::computed(ggml_tensor* node) {
  if (node == stopped_at_) return begin_step();
  if (left_to_device(node)) {
    answer_on_device(node);
  } else if (node->op == GGML_OP_FLASH_ATTN_EXT) {
    overwrite(node);
  } else if (device_ != nullptr && device_->recording()) {
    const QueryMaker& maker = query_makers_.at(node);
    if (!work.error) {
      Status status =
          device_->queries_are_there(maker.node->layer, rows_of(*maker.node, maker.tensor));
      if (!status) work.error = std::move(status).error();
    }
  } else if (observer_ != nullptr && !work.error) {
    const auto [first, last] = watched_.equal_range(node->name);
    for (auto what = first; what != last; ++what) show(node, what->second);
  }
  return true;
}

void AttentionHook::answer_on_device(ggml_tensor* tensor) {
  const Node& node = *node_at(tensor);
  query_makers_[maker_of(tensor->src[0])] = {&node, tensor};
  if (!work.error && work.current < work.ubatches.size()) {
    Status status =
        device_->answer(node.layer, work.ubatches[work.current], rows_of(node, tensor));
    if (!status) work.error = std::move(status).error();
  }
  finish_node(node, static_cast<int>(tensor->ne[2]));
}

void AttentionHook::overwrite(ggml_tensor* tensor) {
  const Node& node = *node_at(tensor);
  const auto index = static_cast<std::size_t>(node.layer);
  const LayerShape& shape = model_.shape.layers[index];
  const std::size_t n = at(tensor->ne[2]);
  // libllama's memory was empty before this ubatch, or ubatches before it fill the first cells.
  std::size_t cell = 0;
  for (std::size_t u = 0; u < work.current && u < work.ubatches.size(); ++u) {
    cell += work.ubatches[u].positions.size();
  }
  const auto rows_from = [&](const ggml_tensor* memory, std::vector<float>& to) {
    copy_rows(memory, cell + n, to);
    to.erase(to.begin(), to.begin() + static_cast<std::ptrdiff_t>(cell * to.size() / (cell + n)));
  };
  rows_from(tensor->src[1], key_copy_);
  rows_from(tensor->src[2], value_copy_);
  copy_rows(tensor->src[0], n, query_copy_);
  out_copy_.resize(n * at(shape.query_heads) * at(shape.value_dim));
  NodeRows rows;
  rows.keys = {key_copy_.data(), {n, at(shape.kv_heads), at(shape.key_dim)}};
  rows.values = {value_copy_.data(), {n, at(shape.kv_heads), at(shape.value_dim)}};
  rows.queries = {query_copy_.data(), {n, at(shape.query_heads), at(shape.key_dim)}};
  rows.out = {out_copy_.data(), {n, at(shape.query_heads), at(shape.value_dim)}};
  rows.stores = node.stores;
  rows.settles = node.settles;
  if (!pool_ || pool_->size() != work.threads) pool_ = std::make_unique<ThreadPool>(work.threads);
  pool_->run([&](Team& team) { attend_node(work, node.layer, rows, team.index(), team.size()); });
  if (!work.error) {
    ggml_backend_tensor_set(tensor, out_copy_.data(), 0, out_copy_.size() * sizeof(float));
  }
  finish_node(node, static_cast<int>(n));
}

void AttentionHook::show(const ggml_tensor* node, const Watched& what) const {
  const std::vector<float> numbers = read_floats(node);
  // What follows the last attention of a graph belongs to the ubatch that finish_node has left.
  const std::size_t ubatch = work.current - (what.behind_last ? 1 : 0);
  if (numbers.empty() || ubatch >= work.ubatches.size()) return;
  const std::size_t n = at(ggml_nrows(node));
  const TensorView<const float, 2> rows(numbers.data(), {n, at(node->ne[0])});
  const auto& positions = work.ubatches[ubatch].positions;
  if (positions.size() != n) return;
  if (what.post_norm) {
    observer_->on_post_norm_input(what.layer, rows, positions);
  } else {
    observer_->on_layer_input(what.layer, rows, positions);
  }
}

}  // namespace kvspan
