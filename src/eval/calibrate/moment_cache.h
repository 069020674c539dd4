// SPDX-License-Identifier: Apache-2.0
// A cache that lets another one do the work and meanwhile hands what passes to a MomentCollector.
#pragma once

#include <memory>
#include <utility>

#include "api/wrapped_cache.h"
#include "kvspan/cache.h"
#include "kvspan/moments.h"
#include "llama/activation_observer.h"

namespace kvspan {

// Sequences come one after the other: clear() ends one and begins the next.
class MomentCache final : public WrappedCache, public ActivationObserver {
 public:
  // `inner` is empty; its results are this cache's results. What has been summed stays when it is
  // truncated: after a step that failed, the moments are of no use. `moments` outlives this.
  MomentCache(std::unique_ptr<KvCache> inner, MomentCollector& moments)
      : WrappedCache(std::move(inner)), moments_(moments) {}

  Status append(int layer, const KvRows& rows, Team& team) override {
    if (Status status = inner().append(layer, rows, team); !status) return status;
    return moments_.add_rows(layer, rows, team);
  }
  Status attend(int layer, const Queries& queries, TensorView<float, 3> out,
                AttentionScratch& scratch, Team& team) override {
    if (Status status = inner().attend(layer, queries, out, scratch, team); !status) return status;
    return moments_.add_queries(layer, queries, team);
  }
  Result<std::unique_ptr<KvCache>> fork() const override {
    return Error{ErrorCode::kUnsupported, "a cache that sums up moments cannot be forked"};
  }

  void on_layer_input(int layer, TensorView<const float, 2> rows,
                      std::span<const std::int32_t> positions) override {
    moments_.add_layer_input(layer, rows, positions);
  }
  void on_post_norm_input(int layer, TensorView<const float, 2> rows,
                          std::span<const std::int32_t> positions) override {
    moments_.add_post_norm_input(layer, rows, positions);
  }

 private:
  MomentCollector& moments_;
};

}  // namespace kvspan
