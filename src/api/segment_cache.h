// SPDX-License-Identifier: Apache-2.0
// The KvCache over segment lists: one list per layer, its group being all KV heads of the layer.
// Holds no policy: rows stay full rank.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/memory.h"
#include "cache/segment_list.h"
#include "kvspan/cache.h"

namespace kvspan {

class SegmentCache final : public KvCache {
 public:
  // The shape has been checked (see make_cache).
  SegmentCache(const CacheShape& shape, Element element);

  const CacheShape& shape() const noexcept override { return *shape_; }
  std::string recipe() const override;
  std::int32_t tokens() const noexcept override;

  Status append(int layer, const KvRows& rows, Team& team) override;
  Status attend(int layer, const Queries& queries, TensorView<float, 3> out,
                AttentionScratch& scratch, Team& team) override;
  Status settle(int layer, Team& team) override;

  Status truncate(std::int32_t n) override;
  void clear() override;
  Result<std::unique_ptr<KvCache>> fork() const override;
  CacheBytes bytes() const override;

 private:
  SegmentList& list(int layer);

  std::shared_ptr<const CacheShape> shape_;
  Element element_;
  std::shared_ptr<Ledger> ledger_;  // of this cache and its forks: memory that any of them holds
  std::vector<SegmentList> layers_;
  bool extended_ = false;  // the leader's outcome of an append, read by its team after a barrier
};

}  // namespace kvspan
