// SPDX-License-Identifier: Apache-2.0
// Steps of an engine on any cache, for targets that ask only whether it is safe to go on with.
#pragma once

#include <cstdint>
#include <numeric>
#include <vector>

#include "kvspan/cache.h"
#include "tests/fuzz/model.h"

namespace kvspan::fuzz {

inline AttentionScratch& shared_scratch() {
  static const auto scratch = make_attention_scratch();
  return *scratch;
}

// The views of rows that calls of a cache take.
inline TensorView<const float, 3> view_of(const std::vector<float>& rows, std::size_t n, std::int32_t heads,
                                          std::int32_t dim) {
  return {rows.data(), {n, static_cast<std::size_t>(heads), static_cast<std::size_t>(dim)}};
}

// A step of `n` tokens from `first` on through all layers; whether every call succeeded.
inline bool step(KvCache& cache, const Model& model, std::int32_t first, std::int32_t n) {
  TeamState state;
  Team team(state, 0, 1);
  std::vector<std::int32_t> positions(static_cast<std::size_t>(n));
  std::iota(positions.begin(), positions.end(), first);
  bool fine = true;
  for (std::size_t i = 0; i < model.shape().layers.size(); ++i) {
    const LayerShape& shape = model.shape().layers[i];
    const auto keys = model.keys(i, positions, 0), values = model.values(i, positions, 0);
    const auto queries = model.queries(i, positions);
    const std::size_t tokens = positions.size();
    std::vector<float> out(tokens * static_cast<std::size_t>(shape.query_heads * shape.value_dim));
    const int layer = static_cast<int>(i);
    const KvRows rows{view_of(keys, tokens, shape.kv_heads, shape.key_dim),
                      view_of(values, tokens, shape.kv_heads, shape.value_dim), positions};
    const Queries asked{view_of(queries, tokens, shape.query_heads, shape.key_dim), positions};
    const auto heads = static_cast<std::size_t>(shape.query_heads), dim = static_cast<std::size_t>(shape.value_dim);
    fine &= cache.append(layer, rows, team).has_value();
    fine &= cache.attend(layer, asked, {out.data(), {tokens, heads, dim}}, shared_scratch(), team).has_value();
    fine &= cache.settle(layer, team).has_value();
  }
  return fine;
}

// Steps, a fork, a truncation: whatever a cache was read from, none of them may do harm.
inline void go_on(KvCache& cache, const Model& model) {
  const std::int32_t next = cache.tokens();
  const auto fork = cache.fork();
  step(cache, model, next, 1);
  step(cache, model, cache.tokens(), 33);
  const std::int32_t now = cache.tokens();
  (void)cache.truncate(std::max(cache.least_tokens(), now - 20));
  step(cache, model, cache.tokens(), 20);
  (void)cache.truncate(std::max(cache.least_tokens(), 7));
  step(cache, model, cache.tokens(), 40);
  if (fork) step(**fork, model, (*fork)->tokens(), 40);
  (void)cache.bytes();
  (void)cache.save();
}

}  // namespace kvspan::fuzz
