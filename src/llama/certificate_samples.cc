// SPDX-License-Identifier: Apache-2.0
#include "llama/certificate_samples.h"

#include <algorithm>
#include <chrono>

#include "api/certify_head.h"

namespace kvspan {
namespace {

void add_bound(double bound, CertificateFigures::Bound& to) {
  to.last = bound;
  to.sum += bound;
  to.most = std::max(to.most, bound);
}

}  // namespace

void CertificateSamples::begin(const CacheShape& shape) noexcept {
  layer_ = -1;
  if (share_ <= 0.0 || left_seconds_ < 0.0) return;
  // All layers before the next KV head: turn_ counts on behind each sample.
  layer_ = static_cast<int>(turn_ % shape.layers.size());
}

void CertificateSamples::end(double seconds) noexcept {
  left_seconds_ = std::min(left_seconds_ + share_ * seconds, 0.0);
  layer_ = -1;
}

std::size_t CertificateSamples::choose(std::size_t sequences) const noexcept {
  return static_cast<std::size_t>(turn_ % sequences);
}

void CertificateSamples::keep(const Queries& queries) {
  const std::size_t last = queries.positions.size() - 1, dim = queries.rows.shape[2];
  position_ = queries.positions[last];
  query_.clear();
  for (std::size_t head = 0; head < queries.rows.shape[1]; ++head) {
    const float* row = queries.rows.row(last, head);
    query_.insert(query_.end(), row, row + dim);
  }
}

void CertificateSamples::take(const KvCache& cache) {
  const auto start = std::chrono::steady_clock::now();
  const auto& layers = cache.shape().layers;
  const LayerShape& shape = layers[static_cast<std::size_t>(layer_)];
  const auto kv_head = static_cast<std::int32_t>(turn_ / layers.size() % static_cast<std::size_t>(shape.kv_heads));
  Queries query;
  query.rows = {query_.data(),
                {1, static_cast<std::size_t>(shape.query_heads), static_cast<std::size_t>(shape.key_dim)}};
  query.positions = {&position_, 1};
  const auto bound = certify_head(cache, layer_, kv_head, query);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  left_seconds_ -= seconds;
  ++turn_;
  if (!bound) return;
  ++figures_.samples;
  figures_.layer = layer_;
  figures_.kv_head = kv_head;
  figures_.tokens = position_ + 1;
  figures_.seconds += seconds;
  add_bound(bound->logits, figures_.logits);
  add_bound(bound->weights, figures_.weights);
  add_bound(bound->output, figures_.output);
}

}  // namespace kvspan
