// SPDX-License-Identifier: Apache-2.0
#include "attention/bands/rebuilt_runner.h"

#include <algorithm>
#include <limits>

#include "attention/score_bias.h"
#include "attention/segments/item.h"
#include "attention/softmax_state.h"
#include "cache/visible.h"

namespace kvspan {

RebuiltRunner::RebuiltRunner(const AttendCall& call, const RoundedRows& rows, float* work) : call_(call) {
  WorkPlaces places{work};
  place(places, rows);
  std::fill_n(zeros_, zeros_count(), 0.0f);
  std::fill_n(query_, rows.key_dim(), 0.0f);
}

std::size_t RebuiltRunner::work_floats(const LayerShape& layer, const RoundedRows& rows) {
  const Queries nobody;
  const AttendCall call{layer, nobody, {}, {}};
  RebuiltRunner runner(call);
  WorkPlaces places{nullptr};
  runner.place(places, rows);
  return places.used;
}

void RebuiltRunner::place(WorkPlaces& places, const RoundedRows& rows) {
  const auto n = static_cast<std::size_t>(most_rows());
  softmax_.place(places, most_rows());
  softmax_.max = places.floats(n);
  softmax_.sum = places.floats(n);
  softmax_.weighed = places.floats(n);
  query_ = places.floats(static_cast<std::size_t>(rows.key_dim()));
  scales_ = places.floats(n * kBandScales);
  zeros_ = places.floats(static_cast<std::size_t>(zeros_count()));
  out_ = places.floats(n * static_cast<std::size_t>(rows.value_numbers()));
  asked_.stride = query_stride(rows.key_ranges());
  rounded_ = places.codes((n + kBandsRowsAfter) * static_cast<std::size_t>(asked_.stride));
}

void RebuiltRunner::run(const RebuiltPart& part, std::int32_t head, std::int32_t first, std::int32_t last) {
  const RoundedRows& rows = *part.rows;
  first_head_ = part.first_head;
  head_ = head;
  first_ = first;
  rows_ = (last - first) * group();
  load_queries(rows);
  std::fill_n(out_, static_cast<std::ptrdiff_t>(rows_) * rows.value_numbers(), 0.0f);
  const std::int32_t stretch = RoundedRows::kTile * StretchSoftmax::tiles(bands_, rows.fine());
  // What the first query no longer sees, none does; nor what the last does not see yet.
  const IndexRange seen =
      part.positions->between(first_seen(call_.layer, position_of(0)), position_of(rows_ - 1));
  {
    const BandsProducts products(bands_, rows_);
    for (std::int32_t t = seen.begin / stretch * stretch; t < seen.end; t += stretch) {
      meet(part, t, std::min(stretch, seen.end - t));
    }
  }
  write(rows, part.values->value_mean(head));
}

void RebuiltRunner::load_queries(const RoundedRows& rows) {
  const float factor = query_factor(call_.layer);
  const std::int32_t dim = call_.layer.key_dim;
  for (std::int32_t r = 0; r < rows_; ++r) {
    const std::int32_t query = first_ + r / group();
    const float* const from = call_.queries.rows.row(query, query_head(r));
    for (std::int32_t i = 0; i < dim; ++i) query_[i] = factor * from[i];
    rows.round_query(query_, rounded_ + static_cast<std::ptrdiff_t>(r) * asked_.stride, scales_ + r * kBandScales);
    softmax_.sum[r] = softmax_.weighed[r] = 0.0f;
    softmax_.start(r, call_.adds ? call_.lse.row(query)[query_head(r)] : -std::numeric_limits<float>::infinity());
  }
  asked_ = {rounded_, asked_.stride, scales_, zeros_, rows_};
}

// Tokens [token, token + tokens) of the part, a stretch.
void RebuiltRunner::meet(const RebuiltPart& part, std::int32_t token, std::int32_t tokens) {
  const LayerShape& layer = call_.layer;
  const RoundedRows& rows = *part.rows;
  const std::int32_t tile = token / RoundedRows::kTile, tiles = (tokens + RoundedRows::kTile - 1) / RoundedRows::kTile;
  const std::int32_t padded = tiles * RoundedRows::kTile;
  bands_.score(rows.key_tiles(head_, tile), tiles, rows.key_ranges(), NarrowQuads{}, asked_,
               {rows.key_scales(head_, token), zeros_, 0, softmax_.scores, StretchSoftmax::kStride});
  const bool limited = layer.window > 0 || layer.chunk > 0;
  const std::int32_t newest = part.positions->at(token + tokens - 1);
  // Of the stretch, those before a position.
  const auto before = [&](std::int32_t position) {
    return std::clamp(part.positions->lower_bound(position) - token, 0, tokens);
  };
  const auto begin = [&](std::int32_t r, float* s) {
    const std::int32_t query = position_of(r);
    const std::int32_t from = limited ? before(first_seen(layer, query)) : 0;
    const std::int32_t end = newest > query ? before(query + 1) : tokens;
    if (from >= end) return padded;
    if (layer.soft_cap > 0.0f) kernels_.cap(s + from, end - from, layer.soft_cap);
    if (!layer.alibi.empty()) {
      add_alibi(s + from, 1, end - from, alibi_slope(layer, query_head(r)), query,
                [&](std::int32_t t) { return part.positions->at(token + from + t); });
    }
    std::fill(s + end, s + padded, -std::numeric_limits<float>::infinity());
    return from;
  };
  const auto out = [&](std::int32_t r) { return out_ + static_cast<std::ptrdiff_t>(r) * rows.value_numbers(); };
  const BandsWeights weights = softmax_.soften(rows_, padded, rows.value_scales(head_, token),
                                               StretchSoftmax::kLightShare, begin, out);
  if (weights.rows == 0) return;
  bands_.weigh(rows.value_tiles(head_, tile), tiles, rows.value_numbers() / 4, NarrowQuads{}, weights);
}

void RebuiltRunner::write(const RoundedRows& rows, const float* mean) {
  const std::int32_t dim = call_.layer.value_dim;
  const std::ptrdiff_t stride = rows.value_numbers();
  for (std::int32_t r = 0; r < rows_; ++r) {
    const SoftmaxState state{softmax_.max[r], softmax_.sum[r]};
    const std::int32_t query = first_ + r / group(), head = query_head(r);
    float* const to = call_.out.row(query, head);
    float* const sum = out_ + r * stride;
    for (std::int32_t i = 0; i < dim && rows.fine(); ++i) sum[i] += sum[rows.value_dim() + i] / kDigitBase;
    const MergeFactors shares =
        merge_state(state, call_.adds, call_.lse.data != nullptr ? call_.lse.row(query) + head : nullptr);
    const float scale = state.sum > 0.0f ? shares.added / state.sum : 0.0f;
    for (std::int32_t i = 0; i < dim; ++i) {
      const float x = shares.added > 0.0f ? shares.added * mean[i] + scale * sum[i] : 0.0f;
      to[i] = shares.kept > 0.0f ? shares.kept * to[i] + x : x;
    }
  }
}

}  // namespace kvspan
