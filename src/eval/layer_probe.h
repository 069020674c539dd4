// SPDX-License-Identifier: Apache-2.0
// An exact cache beside caches that each hold one of its layers in another way: what coding one
// layer alone does to a model. A prefix is read once, exactly, and all of them take their layer's
// rows; what follows can then be read with any one of them in its layer's place.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "api/wrapped_cache.h"

namespace kvspan {

class LayerProbe final : public WrappedCache {
 public:
  // A cache of one layer, of the shape that layer `layer` has.
  struct Coded {
    int layer;
    std::unique_ptr<KvCache> cache;
  };
  // All are empty.
  LayerProbe(std::unique_ptr<KvCache> exact, std::vector<Coded> coded)
      : WrappedCache(std::move(exact)), coded_(std::move(coded)) {}

  // After the prefix, until clear(): attention of that cache's layer reads it, and it alone takes
  // new rows beside the exact one; none: all is exact, as for the prefix, but none takes rows. Each
  // is to be read once.
  void read(std::optional<std::size_t> index) {
    prefix_ = false;
    read_ = index;
  }

  Status append(int layer, const KvRows& rows, Team& team) override;
  Status attend(int layer, const Queries& queries, TensorView<float, 3> out,
                AttentionScratch& scratch, Team& team) override;
  Status settle(int layer, Team& team) override;
  // Of the exact cache.
  Status truncate(std::int32_t n) override { return inner().truncate(n); }
  void clear() override;
  // Refused.
  Result<std::unique_ptr<KvCache>> fork() const override;

 private:
  // Whether cache i takes rows of the layer now.
  bool takes(std::size_t i, int layer) const {
    return coded_[i].layer == layer && (prefix_ || read_ == i);
  }

  std::vector<Coded> coded_;
  bool prefix_ = true;
  std::optional<std::size_t> read_;
};

}  // namespace kvspan
