// SPDX-License-Identifier: Apache-2.0
#include "llama/layer_trace.h"

#include <algorithm>
#include <iterator>
#include <set>

#include "llama/graph_nodes.h"

namespace kvspan {
namespace {

bool is_weight(const ggml_tensor* t) {
  return t != nullptr && t->op == GGML_OP_NONE && t->view_src == nullptr;
}
bool is_norm(const ggml_tensor* t) {
  return t->op == GGML_OP_RMS_NORM || t->op == GGML_OP_NORM;
}
// A gain or a bias: the other source is a vector of the model's.
bool is_affine(const ggml_tensor* t) {
  return (t->op == GGML_OP_MUL || t->op == GGML_OP_ADD) && is_weight(t->src[1]) &&
         ggml_nrows(t->src[1]) == 1;
}

// Back from the key rows: rotation, norms of heads, bias; the key product; the layer's own norm.
const ggml_tensor* input_behind(const ggml_tensor* key_rows) {
  const ggml_tensor* t = key_rows;
  while (t != nullptr && t->op != GGML_OP_MUL_MAT) t = t->src[0];
  if (t == nullptr) return nullptr;
  const ggml_tensor* product_of = t->src[1];
  // Behind a norm and its gain lies the residual stream; without one the product takes it as it is.
  for (t = product_of; t != nullptr; t = t->src[0]) {
    if (is_norm(t)) return memory_of(t->src[0]);
    if (!is_affine(t) && !(is_view(t) && t->op != GGML_OP_NONE)) break;
  }
  return memory_of(product_of);
}

// The gain of a norm of y, or null. `from`: where in the graph to look on.
template <class Node>
const ggml_tensor* gain_after(Node from, Node end, const ggml_tensor* norm) {
  const auto found = std::find_if(from, end, [&](const ggml_tensor* g) {
    return g->op == GGML_OP_MUL && g->src[0] == norm && is_weight(g->src[1]);
  });
  return found == end ? nullptr : *found;
}

// From what a layer adds to the residual stream on: the gain of the norm that reads the sum.
template <class Node>
const ggml_tensor* reader_gain(Node from, Node end, const ggml_tensor* added) {
  bool summed = false;
  for (const ggml_tensor* y = added; from != end; ++from) {
    const ggml_tensor* t = *from;
    if (t->src[0] != y && t->src[1] != y) continue;
    if (summed && is_norm(t)) {
      const ggml_tensor* gain = gain_after(from, end, t);
      return gain == nullptr ? nullptr : gain->src[1];
    }
    const bool sum = t->op == GGML_OP_ADD && !is_affine(t);
    if (!(sum && !summed) && !is_affine(t) && !is_view(t) && t->op != GGML_OP_GET_ROWS) return nullptr;
    summed = summed || sum;
    y = t;
  }
  return nullptr;
}

}  // namespace

LayerTrace trace_layer(std::span<const ggml_tensor* const> nodes, const ggml_tensor* attention,
                       const ggml_tensor* key_rows) {
  LayerTrace trace;
  if (const ggml_tensor* input = input_behind(key_rows)) trace.input = input->name;
  // Forward: what is made of attention's output, up to the product with a matrix of the model's.
  std::set<const ggml_tensor*> derived{attention};
  auto node = std::find(nodes.begin(), nodes.end(), attention);
  const auto from_attention = [&](const ggml_tensor* t) {
    return t != nullptr && derived.contains(t);
  };
  for (; node != nodes.end(); ++node) {
    const ggml_tensor* t = *node;
    if (!from_attention(t->src[0]) && !from_attention(t->src[1])) continue;
    if (t->op != GGML_OP_MUL_MAT) {
      derived.insert(t);
      continue;
    }
    // The up-projection of MLA, a matrix for each head, comes before the output matrix.
    if (!is_weight(t->src[0]) || ggml_n_dims(t->src[0]) != 2 ||
        t->src[0]->ne[0] != attention->ne[0] * attention->ne[1]) {
      return trace;
    }
    trace.output_weight = t->src[0];
    break;
  }
  if (node == nodes.end()) return trace;
  // A bias and then a norm? The last layer goes on with the rows whose logits are asked for; what
  // the norm would take of all rows lies before that.
  const ggml_tensor* all_rows = *node;
  const ggml_tensor* added = *node;
  const auto product = node;
  for (const ggml_tensor* y = *node; ++node != nodes.end();) {
    const ggml_tensor* t = *node;
    if (t->src[0] != y) continue;
    if (is_norm(t)) {
      trace.post_norm_input = memory_of(all_rows)->name;
      trace.post_norm_epsilon = float_param(t, 0);
      added = t;
      if (const ggml_tensor* gain = gain_after(node, nodes.end(), t)) {
        trace.post_norm_gain = gain->src[1];
        added = gain;
      }
      break;
    }
    const bool chosen = t->op == GGML_OP_GET_ROWS;
    if (!is_affine(t) && !is_view(t) && !chosen) break;
    y = t;
    if (!chosen) all_rows = t;
  }
  trace.reader_gain = reader_gain(std::next(product), nodes.end(), added);
  return trace;
}

}  // namespace kvspan
