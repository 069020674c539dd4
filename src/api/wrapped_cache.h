// SPDX-License-Identifier: Apache-2.0
// A cache that does what another one does: what stands between an engine and a cache overrides the
// calls that it looks at.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "kvspan/cache.h"

namespace kvspan {

class WrappedCache : public KvCache {
 public:
  explicit WrappedCache(std::unique_ptr<KvCache> inner) : inner_(std::move(inner)) {}

  const CacheShape& shape() const noexcept override { return inner_->shape(); }
  std::string recipe() const override { return inner_->recipe(); }
  std::int32_t tokens() const noexcept override { return inner_->tokens(); }
  Status append(int layer, const KvRows& rows, Team& team) override {
    return inner_->append(layer, rows, team);
  }
  Status attend(int layer, const Queries& queries, TensorView<float, 3> out,
                AttentionScratch& scratch, Team& team) override {
    return inner_->attend(layer, queries, out, scratch, team);
  }
  Status settle(int layer, Team& team) override { return inner_->settle(layer, team); }
  Status truncate(std::int32_t n) override { return inner_->truncate(n); }
  std::int32_t least_tokens() const noexcept override { return inner_->least_tokens(); }
  void clear() override { inner_->clear(); }
  // The inner cache alone.
  Result<std::unique_ptr<KvCache>> fork() const override { return inner_->fork(); }
  CacheBytes bytes() const override { return inner_->bytes(); }
  const KvCache& wrapped() const noexcept { return *inner_; }

 protected:
  KvCache& inner() noexcept { return *inner_; }
  const KvCache& inner() const noexcept { return *inner_; }
  // Gives the inner cache away, after which only destroying is left.
  std::unique_ptr<KvCache> release() noexcept { return std::move(inner_); }

 private:
  std::unique_ptr<KvCache> inner_;
};

}  // namespace kvspan
