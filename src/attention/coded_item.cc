// SPDX-License-Identifier: Apache-2.0
#include "attention/coded_item.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/coded_runner.h"
#include "attention/softmax_state.h"

namespace kvspan {
namespace {

// Numbers a row of this side has while it is worked on, padded.
std::int32_t key_width(const AttentionPlan& plan, const Segment& segment, std::int32_t head) {
  if (!segment.coded_keys) return plan.key_dim;
  const Code& code = *segment.coded_keys->part(head).code;
  return code.domain() == Domain::kPreRopeKey ? plan.key_dim : padded_dim(code.rank());
}

std::int32_t value_width(const AttentionPlan& plan, const Segment& segment, std::int32_t head) {
  return segment.coded_values ? padded_dim(segment.coded_values->part(head).code->rank())
                              : plan.value_dim;
}

// Parts of the working memory, in floats.
struct Sizes {
  std::size_t rows, key, value, key_dim, value_dim;

  std::size_t queries() const { return rows * key_dim; }
  std::size_t moved() const { return rows * key; }
  std::size_t scores() const { return rows * static_cast<std::size_t>(kRunStride); }
  std::size_t state() const { return rows * (2 + value); }
  std::size_t per_row() const { return 4 * rows; }  // decay, begin, end, offset
  std::size_t key_rows() const { return static_cast<std::size_t>(kCodedTokens) * key; }
  std::size_t value_rows() const { return static_cast<std::size_t>(kCodedTokens) * value; }
  std::size_t mean_rows() const { return static_cast<std::size_t>(kCodedTokens) * key_dim; }
  std::size_t row() const { return std::max(key, value) + 2 * key_dim + value_dim; }
  std::size_t total() const {
    return 3 * queries() + 2 * moved() + 2 * scores() + state() + per_row() + key_rows() +
           value_rows() + mean_rows() + row();
  }
};

// The same for every head of the segment: the largest rank counts.
Sizes sizes_of(const AttentionPlan& plan, const Segment& segment) {
  std::int32_t key = plan.key_dim, value = plan.value_dim;
  const auto widen = [](const CodedSide* side, std::int32_t& width) {
    if (side == nullptr) return;
    for (const CodedSide::Part& part : side->parts()) {
      width = std::max(width, padded_dim(part.code->rank()));
    }
  };
  widen(segment.coded_keys.get(), key);
  widen(segment.coded_values.get(), value);
  return {static_cast<std::size_t>(plan.padded_rows), static_cast<std::size_t>(key),
          static_cast<std::size_t>(value), static_cast<std::size_t>(plan.key_dim),
          static_cast<std::size_t>(plan.value_dim)};
}

}  // namespace

namespace detail {

void CodedRunner::lay_out(float* work) {
  const Sizes s = sizes_of(plan, segment);
  const auto take = [&work](std::size_t floats) {
    float* const here = work;
    work += floats;
    return here;
  };
  q = take(s.queries());
  turned = take(s.queries());
  moved = take(s.moved());
  panels = take(s.moved());
  mean_panels = take(s.queries());
  scores = take(s.scores());
  mean_scores = take(s.scores());
  max = take(s.rows);
  sum = take(s.rows);
  out = take(s.rows * s.value);
  decay = take(s.rows);
  offset = take(s.rows);
  begin = reinterpret_cast<std::int32_t*>(take(s.rows));
  end = reinterpret_cast<std::int32_t*>(take(s.rows));
  key_rows = take(s.key_rows());
  value_rows = take(s.value_rows());
  mean_rows = take(s.mean_rows());
  row = take(s.row());
  // Rows are padded with zeros; decoding writes the coefficients only.
  std::fill_n(key_rows, s.key_rows(), 0.0f);
  std::fill_n(value_rows, s.value_rows(), 0.0f);
  std::fill_n(mean_rows, s.mean_rows(), 0.0f);
  std::fill_n(q, 3 * s.queries() + 2 * s.moved(), 0.0f);
  std::fill_n(max, s.rows, -std::numeric_limits<float>::infinity());
  std::fill_n(sum, s.rows * (1 + s.value), 0.0f);
}

RowsView CodedRunner::load_values(IndexRange part) {
  if (values == nullptr) return segment.values.head(item.head).from(part.begin);
  if (in_place(*values)) return stored_rows(*values, part.begin);
  const auto n = static_cast<std::size_t>(part.size());
  const auto r = static_cast<std::size_t>(values->code->rank());
  values->coefficients(part.begin, {value_rows, {n, r}, {static_cast<std::size_t>(value_dim), 1}});
  return rows_at(value_rows, value_dim);
}

// Ranges of the tile's rows in `part`; false when no row sees any of it.
bool CodedRunner::find_ranges(IndexRange part) {
  bool any = false;
  std::fill_n(begin, padded_rows, 0);
  std::fill_n(end, padded_rows, 0);  // padding sees nothing
  for (std::int32_t i = 0; i < item.positions; ++i) {
    const IndexRange seen = segment.positions.visible(position(i), layer.window);
    const std::int32_t from = std::clamp(seen.begin - part.begin, 0, part.size());
    const std::int32_t to = std::clamp(seen.end - part.begin, 0, part.size());
    any |= from < to;
    std::fill_n(begin + i * plan.group, plan.group, from);
    std::fill_n(end + i * plan.group, plan.group, to);
  }
  return any;
}

void CodedRunner::soften_rows(IndexRange part) {
  const std::int32_t n = part.size();
  for (std::int32_t r = 0; r < rows; ++r) {
    float* s = scores + static_cast<std::ptrdiff_t>(r) * kRunStride;
    if (begin[r] >= end[r]) {
      std::fill_n(s, n, 0.0f);
      continue;
    }
    const std::int32_t count = end[r] - begin[r];
    if (layer.soft_cap > 0.0f) kernels.cap(s + begin[r], count, layer.soft_cap);
    const float old = max[r];
    const float added = kernels.soften_row(s + begin[r], count, &max[r]);
    std::fill_n(s, begin[r], 0.0f);
    std::fill(s + end[r], s + n, 0.0f);
    const float factor = old == max[r] ? 1.0f : std::exp2(old - max[r]);
    sum[r] = sum[r] * factor + added;
    float* to = out + static_cast<std::ptrdiff_t>(r) * value_dim;
    if (factor != 1.0f) {
      for (std::int32_t i = 0; i < value_dim; ++i) to[i] *= factor;
    }
  }
}

// Tokens that share one position of the queries.
void CodedRunner::run_block(IndexRange part) {
  for (std::int32_t t = part.begin; t < part.end; t += kCodedTokens) {
    const IndexRange tile{t, std::min(part.end, t + kCodedTokens)};
    if (!find_ranges(tile)) continue;
    score(tile);
    if (tile_form()) {
      if (layer.soft_cap > 0.0f) kernels.cap(scores, tile.size() * padded_rows, layer.soft_cap);
      kernels.soften_tile(scores, padded_rows, tile.size(), begin, end, max, sum, decay);
      const RowsView v = load_values(tile);
      if (v.data != reinterpret_cast<const std::byte*>(value_rows)) {
        kernels.widen(v, value_dim, tile.size(), value_rows);
      }
      kernels.weigh_tile(scores, padded_rows, value_rows, value_dim, tile.size(), decay, out);
    } else {
      soften_rows(tile);
      kernels.weigh_rows(scores, kRunStride, rows, load_values(tile), value_dim, tile.size(),
                         nullptr, out);
    }
  }
}

void CodedRunner::run(IndexRange part) {
  if (keys == nullptr || keys->code->domain() != Domain::kAnchoredKey) {
    move_queries(0);
    run_block(part);
    return;
  }
  const Code& code = *keys->code;
  while (!part.empty()) {
    const std::int32_t anchor = code.anchor_of(segment.positions.at(part.begin));
    const std::int32_t next = anchor - code.anchor_block() / 2 + code.anchor_block();
    const IndexRange block{part.begin, std::min(part.end, segment.positions.lower_bound(next))};
    move_queries(anchor);
    run_block(block);
    part.begin = block.end;
  }
}

void CodedRunner::merge_into_state(const StateView& state) {
  for (std::int32_t r = 0; r < rows; ++r) {
    if (sum[r] == 0.0f) continue;
    const float* added = out + static_cast<std::ptrdiff_t>(r) * value_dim;
    std::int32_t width = plan.value_dim;
    if (values != nullptr) {
      const Code& code = *values->code;
      const float* mean = code.mean(head_in(values));
      code.synthesise(head_in(values), added, row);
      for (std::int32_t i = 0; mean != nullptr && i < code.dim(); ++i) row[i] += sum[r] * mean[i];
      added = row;
      width = code.dim();
    }
    SoftmaxState whole{state.max[r], state.sum[r]};
    const MergeFactors factors = merge_into(whole, {max[r], sum[r]});
    state.max[r] = whole.max;
    state.sum[r] = whole.sum;
    float* to = state.out + static_cast<std::ptrdiff_t>(r) * plan.value_dim;
    for (std::int32_t i = 0; i < width; ++i)
      to[i] = to[i] * factors.kept + added[i] * factors.added;
  }
}

}  // namespace detail

std::size_t coded_floats(const AttentionPlan& plan, const SegmentList& list) noexcept {
  std::size_t most = 0;
  for (const Segment& segment : list.segments()) {
    if (!segment.coded()) continue;
    most = std::max(most, sizes_of(plan, segment).total());
  }
  return most;
}

void attend_coded(const AttentionPlan& plan, const AttentionKernels& kernels,
                  const LayerShape& layer, const Queries& queries, const AttentionItem& item,
                  const Segment& segment, IndexRange part, const StateView& state,
                  float* work) noexcept {
  detail::CodedRunner run{
      .plan = plan,
      .kernels = kernels,
      .layer = layer,
      .queries = queries,
      .item = item,
      .segment = segment,
      .keys = segment.coded_keys ? &segment.coded_keys->part(item.head) : nullptr,
      .values = segment.coded_values ? &segment.coded_values->part(item.head) : nullptr};
  run.rows = item.positions * plan.group;
  run.padded_rows =
      plan.rows_form() ? run.rows : (run.rows + kPanelRows - 1) / kPanelRows * kPanelRows;
  run.key_dim = key_width(plan, segment, item.head);
  run.value_dim = value_width(plan, segment, item.head);
  run.lay_out(work);
  run.load_queries();
  run.run(part);
  run.merge_into_state(state);
}

}  // namespace kvspan
