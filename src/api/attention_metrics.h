// SPDX-License-Identifier: Apache-2.0
// What errors of old tokens do to the residual stream, by the attention that a text pays them: LayerCalibration's
// key_metric and value_metric.
//
// A query q with weights p_j reads o = sum_j p_j v_j. Errors e_j of keys and f_j of values that are small, and
// independent from token to token, change it by
//     sum_j p_j (s q.e_j) (v_j - o) + sum_j p_j f_j,      s the scale of logits (times the slope of a soft cap),
// and the stream by Wo_g times that, g the query head. The expected square is tr(K E[e e']) + tr(V E[f f']) with
//     K = sum_g E[c q q'] s^2,  c = sum_j p_j^2 |Wo_g (v_j - o)|^2,      V = sum_g E[sum_j p_j^2] Wo_g' Wo_g,
// g over the query heads that read the KV head, E over queries, j over tokens that recipes code: not the first of a
// sequence, nor the last before the query.
// Cost: every kStride-th query attends once more, in f32; for each token query_heads dv^2 multiply-adds. The keys and
// values of a window are held as f32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cache/segments/segment.h"
#include "kvspan/cache.h"
#include "kvspan/team.h"
#include "linalg/moment_sum.h"

namespace kvspan {

class AttentionMetrics {
 public:
  // `window`: tokens of a sequence at most; the first `skip` are never coded. `block`: most rows that come at once.
  AttentionMetrics(const LayerShape& shape, std::int32_t window, std::int32_t skip, std::int32_t block);

  // Wo_g' Wo_g of every query head, [query_heads][dv * dv], before any rows; else the identity.
  void set_output(std::vector<float> products) { products_ = std::move(products); }
  // sum_g Wo_g' Wo_g factor / G: what an error of a KV head's attention output does, [kv_heads][dv * dv].
  std::vector<float> output_metric(double factor) const;

  // A block of a sequence: its rows, then its queries, by all members of a team; `counted` queries of the layer came
  // before. A position that is not beyond the last begins another sequence. Rows beyond the window are not seen.
  void add_rows(const KvRows& rows, Team& team);
  void add_queries(const Queries& queries, std::int64_t counted, Team& team);

  // Whether no query has seen an old token; then there are no metrics.
  bool empty() const noexcept;
  // [kv_heads][dk * dk] and [kv_heads][dv * dv], times `factor`. A head that reads hardly any old tokens counts as
  // kLeastShare of the layer's mean: in another text it may.
  std::vector<float> key_metric(double factor) const;
  std::vector<float> value_metric(double factor) const;

 private:
  struct Reading {
    double square = 0.0;    // sum_j p_j^2
    double movement = 0.0;  // c, with the slope of the cap
  };
  // What a query sees of the rows held: n from `first` on, those old counted from there.
  struct Sight {
    std::int32_t first = 0, n = 0, old = 0, old_end = 0;
  };
  struct Weights {
    std::int32_t stride = 0;
    std::vector<float> p;               // [query heads of the KV head][stride]
    std::vector<float> squared_slopes;  // of the soft cap, [query heads][n]; none without one
  };
  std::size_t group() const noexcept { return static_cast<std::size_t>(shape_.query_heads / shape_.kv_heads); }
  Sight sight_at(std::int32_t position) const noexcept;
  // Of the query in that row, by the query heads that read KV head `head`.
  Weights weigh(const Queries& queries, std::size_t row, std::size_t head, const Sight& seen) const;
  void read_head(const Queries& queries, std::size_t row, std::size_t head, Reading* to) const;
  // v' Wo_g' Wo_g w
  double product(std::size_t query_head, const float* v, const float* w) const noexcept;
  // sum_g weights[g] Wo_g' Wo_g of each KV head
  std::vector<double> weighted_products(std::span<const double> weights) const;

  LayerShape shape_;
  std::int32_t window_, skip_;
  std::vector<float> products_;
  std::vector<std::int32_t> positions_;  // of the rows held
  RowSide keys_, values_;
  std::vector<float> energies_;     // [query_heads][window], v' Wo_g' Wo_g v of the rows held
  std::vector<Reading> readings_;   // of the block at hand, [sampled queries][query_heads]
  detail::Panel moved_;             // s sqrt(c) q of those, a query head each padded columns
  std::vector<MomentSum> queries_;  // of each KV head
  std::vector<double> squares_;     // [query_heads], sums of Reading::square
  std::int64_t read_ = 0;           // queries in the sums
};

}  // namespace kvspan
