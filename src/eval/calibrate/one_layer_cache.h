// SPDX-License-Identifier: Apache-2.0
// A cache that is exact but in one layer, which another cache of one layer holds: what coding that
// layer alone does to a model.
#pragma once

#include <algorithm>
#include <memory>
#include <utility>

#include "api/wrapped_cache.h"

namespace kvspan {

class OneLayerCache final : public WrappedCache {
 public:
  // `one` holds layer `layer` of `exact`'s shape and nothing else; both are empty.
  OneLayerCache(std::unique_ptr<KvCache> exact, std::unique_ptr<KvCache> one, int layer)
      : WrappedCache(std::move(exact)), one_(std::move(one)), layer_(layer) {}

  std::string recipe() const override { return one_->recipe(); }
  Status append(int layer, const KvRows& rows, Team& team) override;
  Status attend(int layer, const Queries& queries, TensorView<float, 3> out,
                AttentionScratch& scratch, Team& team) override;
  Status settle(int layer, Team& team) override;
  Status truncate(std::int32_t n) override;
  std::int32_t least_tokens() const noexcept override {
    return std::max(one_->least_tokens(), inner().least_tokens());
  }
  void clear() override;
  // Refused.
  Result<std::unique_ptr<KvCache>> fork() const override;

 private:
  std::unique_ptr<KvCache> one_;
  int layer_;
};

}  // namespace kvspan
