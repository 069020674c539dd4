// SPDX-License-Identifier: Apache-2.0
#include "eval/study/study_bytes.h"

#include <algorithm>

#include "api/wrapped_cache.h"
#include "base/fail.h"
#include "base/thread_pool.h"

namespace kvspan {
namespace {

std::vector<float> copy_of(const TensorView<const float, 3>& rows) {
  std::vector<float> out;
  out.reserve(rows.shape[0] * rows.shape[1] * rows.shape[2]);
  for (std::size_t i = 0; i < rows.shape[0]; ++i) {
    for (std::size_t h = 0; h < rows.shape[1]; ++h) {
      const float* row = rows.row(i, h);
      out.insert(out.end(), row, row + rows.shape[2]);
    }
  }
  return out;
}

}  // namespace

// A full cache that keeps what passes through some of its layers.
class ByteProbe::Recorder final : public WrappedCache {
 public:
  Recorder(std::unique_ptr<KvCache> inner, std::vector<Layer>& layers)
      : WrappedCache(std::move(inner)), layers_(layers) {}

  Status append(int layer, const KvRows& rows, Team& team) override {
    if (Layer* to = find(layer); to != nullptr && team.leader()) {
      to->blocks.push_back({{rows.positions.begin(), rows.positions.end()},
                            copy_of(rows.keys),
                            copy_of(rows.values),
                            {}});
    }
    return WrappedCache::append(layer, rows, team);
  }
  Status attend(int layer, const Queries& queries, TensorView<float, 3> out,
                AttentionScratch& scratch, Team& team) override {
    if (Layer* to = find(layer); to != nullptr && team.leader()) {
      to->blocks.back().queries = copy_of(queries.rows);
    }
    return WrappedCache::attend(layer, queries, out, scratch, team);
  }

 private:
  Layer* find(int layer) {
    for (Layer& known : layers_) {
      if (known.index == layer) return &known;
    }
    return nullptr;
  }
  std::vector<Layer>& layers_;
};

Result<ByteProbe> ByteProbe::record(Engine& engine, std::span<const Token> window,
                                    std::int32_t block,
                                    const std::function<void(std::size_t)>& progress) {
  ByteProbe out;
  out.shape_ = engine.cache_shape();
  out.threads_ = engine.options().threads;
  out.tokens_ = static_cast<std::int32_t>(window.size());
  const auto layers = static_cast<int>(out.shape_.layers.size());
  for (const int index : {layers / 3, 2 * layers / 3}) {
    if (out.layers_.empty() || out.layers_.back().index != index)
      out.layers_.push_back({index, {}});
  }
  KVSPAN_TRY(auto full, make_cache(out.shape_, "full"));
  Recorder recorder(std::move(full), out.layers_);
  for (std::size_t begin = 0; begin < window.size(); begin += static_cast<std::size_t>(block)) {
    const std::size_t count = std::min(static_cast<std::size_t>(block), window.size() - begin);
    const BatchPart part{&recorder, window.subspan(begin, count), BatchPart::Logits::kLast};
    KVSPAN_CHECK_OK(engine.decode({&part, 1}));
    if (progress) progress(begin + count);
  }
  return out;
}

Status ByteProbe::fill_layer(KvCache& cache, const Layer& layer, std::vector<float>& answers,
                             AttentionScratch& scratch, Team& team) const {
  const LayerShape& shape = shape_.layers[static_cast<std::size_t>(layer.index)];
  const auto kv = static_cast<std::size_t>(shape.kv_heads);
  const auto heads = static_cast<std::size_t>(shape.query_heads);
  const auto dk = static_cast<std::size_t>(shape.key_dim);
  const auto dv = static_cast<std::size_t>(shape.value_dim);
  for (const Block& block : layer.blocks) {
    const std::size_t n = block.positions.size();
    if (team.leader()) answers.resize(n * heads * dv);
    const KvRows rows{
        {block.keys.data(), {n, kv, dk}}, {block.values.data(), {n, kv, dv}}, block.positions};
    KVSPAN_CHECK_OK(cache.append(layer.index, rows, team));  // ends with a barrier
    const Queries queries{{block.queries.data(), {n, heads, dk}}, block.positions};
    KVSPAN_CHECK_OK(
        cache.attend(layer.index, queries, {answers.data(), {n, heads, dv}}, scratch, team));
    KVSPAN_CHECK_OK(cache.settle(layer.index, team));
  }
  return {};
}

Status ByteProbe::fill(KvCache& cache) const {
  const auto scratch = make_attention_scratch();
  ThreadPool pool(threads_);
  std::vector<float> answers;
  Status outcome;
  pool.run([&](Team& team) {
    for (const Layer& layer : layers_) {
      // All members get the same answer.
      Status status = fill_layer(cache, layer, answers, *scratch, team);
      if (status) continue;
      if (team.leader()) outcome = std::move(status);
      return;
    }
  });
  return outcome;
}

Result<double> ByteProbe::bits(const std::string& recipe, const CacheSource& source) {
  if (const auto found = known_.find(recipe); found != known_.end()) return found->second;
  KVSPAN_TRY(const auto cache, source(recipe));
  const auto empty = static_cast<double>(cache->bytes().total);
  KVSPAN_CHECK_OK(fill(*cache));
  CacheShape filled;
  for (const Layer& layer : layers_) {
    filled.layers.push_back(shape_.layers[static_cast<std::size_t>(layer.index)]);
  }
  const auto all = static_cast<double>(full_rank_f16_bytes(shape_, tokens_));
  const auto part = static_cast<double>(full_rank_f16_bytes(filled, tokens_));
  const double grown = static_cast<double>(cache->bytes().total) - empty;
  return known_[recipe] = 16.0 * (empty + grown * all / part) / all;
}

}  // namespace kvspan
