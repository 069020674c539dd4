// SPDX-License-Identifier: Apache-2.0
#include "eval/equal_bytes/byte_probe.h"

#include <algorithm>
#include <cmath>

#include "api/wrapped_cache.h"
#include "base/fail.h"
#include "base/thread_pool.h"
#include "recipe/recipe.h"

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

// Of `of` things in a row, `count` evenly spread.
std::vector<std::size_t> spread(std::size_t of, std::size_t count) {
  std::vector<std::size_t> out;
  for (std::size_t i = 0; i < count; ++i) out.push_back((2 * i + 1) * of / (2 * count));
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

void ByteProbe::choose_layers(std::size_t most_bytes) {
  std::vector<std::vector<std::size_t>> kinds;  // layers of equal shape
  for (std::size_t l = 0; l < shape_.layers.size(); ++l) {
    const auto same = [&](const auto& kind) {
      return shape_.layers[kind.front()] == shape_.layers[l];
    };
    const auto found = std::find_if(kinds.begin(), kinds.end(), same);
    if (found == kinds.end()) {
      kinds.push_back({l});
    } else {
      found->push_back(l);
    }
  }
  double numbers = 0.0;
  for (const LayerShape& layer : shape_.layers) {
    numbers += static_cast<double>(layer.kv_heads) * (layer.key_dim + layer.value_dim) +
               static_cast<double>(layer.query_heads) * layer.key_dim;
  }
  const double all = numbers * sizeof(float) * tokens_;
  const double share = std::min(1.0, static_cast<double>(most_bytes) / all);
  for (const auto& kind : kinds) {
    const auto size = static_cast<double>(kind.size());
    const auto count = static_cast<std::size_t>(std::max(1.0, std::floor(share * size)));
    for (const std::size_t i : spread(kind.size(), count)) {
      layers_.push_back({static_cast<int>(kind[i]), size / static_cast<double>(count), {}});
    }
  }
  std::ranges::sort(layers_, {}, &Layer::index);
}

Result<ByteProbe> ByteProbe::record(Engine& engine, std::span<const Token> window,
                                    std::int32_t block,
                                    const std::function<void(std::size_t)>& progress,
                                    std::size_t most_bytes) {
  ByteProbe out;
  out.shape_ = engine.cache_shape();
  out.threads_ = engine.options().threads;
  out.tokens_ = static_cast<std::int32_t>(window.size());
  out.choose_layers(most_bytes);
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

Status ByteProbe::fill(KvCache& cache, std::span<const Layer> layers, bool asks) const {
  const auto scratch = make_attention_scratch();
  std::vector<float> answer;
  const auto step = [&](const Layer& layer, const Block& block, Team& team) -> Status {
    const LayerShape& shape = shape_.layers[static_cast<std::size_t>(layer.index)];
    const auto kv = static_cast<std::size_t>(shape.kv_heads);
    const auto heads = static_cast<std::size_t>(shape.query_heads);
    const auto dk = static_cast<std::size_t>(shape.key_dim);
    const auto dv = static_cast<std::size_t>(shape.value_dim);
    const std::size_t n = block.positions.size();
    const KvRows rows{
        {block.keys.data(), {n, kv, dk}}, {block.values.data(), {n, kv, dv}}, block.positions};
    KVSPAN_CHECK_OK(cache.append(layer.index, rows, team));
    if (asks) {
      if (team.leader()) answer.resize(n * heads * dv);
      team.barrier();
      const Queries queries{{block.queries.data(), {n, heads, dk}}, block.positions};
      KVSPAN_CHECK_OK(
          cache.attend(layer.index, queries, {answer.data(), {n, heads, dv}}, *scratch, team));
    }
    return cache.settle(layer.index, team);
  };
  Status outcome;
  ThreadPool pool(threads_);
  pool.run([&](Team& team) {
    for (std::size_t b = 0; b < layers.front().blocks.size(); ++b) {
      for (const Layer& layer : layers) {
        Status status = step(layer, layer.blocks[b], team);  // all members get the same answer
        if (status) continue;
        if (team.leader()) outcome = std::move(status);
        return;
      }
    }
  });
  return outcome;
}

Result<std::uint64_t> ByteProbe::bytes(const std::string& recipe, const CacheSource& source) {
  if (const auto found = known_.find(recipe); found != known_.end()) return found->second;
  KVSPAN_TRY(const auto cache, source(recipe));
  const auto parsed = Recipe::parse(cache->recipe());
  const bool asks = parsed && parsed->selector() != nullptr;
  if (layers_.size() == shape_.layers.size()) {
    KVSPAN_CHECK_OK(fill(*cache, layers_, asks));
    return known_[recipe] = cache->bytes().total;
  }
  auto held = static_cast<double>(cache->bytes().total);
  for (const Layer& layer : layers_) {
    const auto before = static_cast<double>(cache->bytes().total);
    KVSPAN_CHECK_OK(fill(*cache, {&layer, 1}, asks));
    held += layer.stands_for * (static_cast<double>(cache->bytes().total) - before);
  }
  return known_[recipe] = static_cast<std::uint64_t>(std::llround(held));
}

}  // namespace kvspan
