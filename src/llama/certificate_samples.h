// SPDX-License-Identifier: Apache-2.0
// Certificates of a query now and then, while a model runs. One costs as much as rebuilding all rows of
// a head, so they are paced by time: a share of what decoding takes, whatever the length of the
// texts. Layers, KV heads and sequences take turns.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kvspan/cache.h"
#include "kvspan/llama.h"

namespace kvspan {

class CertificateSamples {
 public:
  // 0: none are taken.
  void set_share(double share) noexcept { share_ = share; }

  // Before a decode, and after it with its seconds.
  void begin(const CacheShape& shape) noexcept;
  void end(double seconds) noexcept;

  // Around the step of a layer, by one thread. Whether this is the layer whose turn it is:
  bool wants(int layer) const noexcept { return layer == layer_; }
  // Index of the sequence to sample, below `sequences`.
  std::size_t choose(std::size_t sequences) const noexcept;
  // The last of the queries, which the step may write over.
  void keep(const Queries& queries);
  // What the cache, which has been given these queries, may have made of it.
  void take(const KvCache& cache);

  const CertificateFigures& figures() const noexcept { return figures_; }

 private:
  double share_ = 0.0;
  double left_seconds_ = 0.0;  // that samples may take; below 0 after one that took more
  int layer_ = -1;             // whose turn it is in this decode; -1: none's
  std::uint64_t turn_ = 0;
  std::vector<float> query_;  // [query_heads, key_dim]
  std::int32_t position_ = 0;
  CertificateFigures figures_;
};

}  // namespace kvspan
