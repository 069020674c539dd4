// SPDX-License-Identifier: Apache-2.0
// A cache that lets another one do the work and holds every step against exact attention: a mode
// for checking. It keeps all rows beside that cache, computes the last query of each call plainly
// in double precision over them, and over the rows as the cache rebuilds them.
//
// Exact means the rows as the recipe's full-rank ends hold them (f16, or f32 with store=f32), none
// coded and none dropped: what the certificates speak of (attention/certificate/certificate.h).
// Cost: rebuilds every row of the layer in every step; memory of a full f32 cache besides.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "api/wrapped_cache.h"
#include "attention/certificate/certificate.h"
#include "cache/rows/row_block.h"
#include "kvspan/cache.h"
#include "method/method_cache.h"

namespace kvspan {

// One layer's attention in one step: the last query of a call. Errors and bounds are the largest
// over the query heads; correlation and overlap their mean.
struct TrackedStep {
  int layer = 0;
  std::int32_t position = 0;         // of the query
  std::int32_t tokens = 0;           // that it sees in exact attention
  std::int32_t read = 0;             // of these, read by every query head
  double logit_error = 0.0;          // |l - l^|_inf over the tokens read
  double output_error = 0.0;         // |o - o^|_2
  double output_norm = 0.0;          // |o|_2 of the head with that error
  double correlation = 0.0;          // Pearson's, of a and a^ (0 for tokens not read)
  double top10_overlap = 0.0;        // share of the ten largest weights of a among those of a^
  std::optional<Certificate> bound;  // where the recipe keeps residuals and drops nothing
  std::optional<double> key_delta;   // of fd's sketches, the largest of the layer
  std::optional<double> value_delta;
};

class TrackingCache final : public WrappedCache {
 public:
  using Report = std::function<void(const TrackedStep&)>;

  // `inner` is empty and made from a recipe. `report` is called by one thread at a time.
  static Result<std::unique_ptr<TrackingCache>> create(std::unique_ptr<KvCache> inner,
                                                       Report report);

  Status append(int layer, const KvRows& rows, Team& team) override;
  Status attend(int layer, const Queries& queries, TensorView<float, 3> out,
                AttentionScratch& scratch, Team& team) override;
  Status truncate(std::int32_t n) override;
  void clear() override;
  // Refused.
  Result<std::unique_ptr<KvCache>> fork() const override;

 private:
  // All rows of one layer so far, [tokens, heads, dim], at positions 0, 1, ..
  struct Rows {
    std::vector<float> keys, values;
  };
  TrackingCache(std::unique_ptr<MethodCache> inner, Report report);
  void keep(const LayerShape& shape, const KvRows& rows, Rows& to) const;
  // Adds one query head of the layer to the step. in_group: its KV head among those of `rebuilt`.
  void measure_head(const LayerShape& shape, const Rows& rows, const float* query, std::size_t head,
                    const RowBlock& rebuilt, std::int32_t in_group, const float* out,
                    TrackedStep& step) const;
  TrackedStep measure(int layer, const Queries& queries, const TensorView<float, 3>& out) const;

  const MethodCache& method() const noexcept { return static_cast<const MethodCache&>(inner()); }

  Report report_;
  bool rounded_;  // ends are f16
  std::vector<Rows> layers_;
  Status outcome_;  // of the leader's last measurement, for all threads to read
};

}  // namespace kvspan
