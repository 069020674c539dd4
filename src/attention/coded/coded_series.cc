// SPDX-License-Identifier: Apache-2.0
#include "attention/coded/coded_series.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/score_bias.h"
#include "attention/softmax_state.h"
#include "cache/visible.h"

namespace kvspan {
namespace {

// Parts of the working memory, in floats.
struct Sizes {
  std::size_t rows, key, value, key_dim, value_dim;
  bool rows_form;

  std::size_t queries() const { return rows * key_dim; }
  std::size_t moved() const { return rows * key; }
  // In panel form [token][row]: products of a part may touch tokens up to the next multiple.
  std::size_t scores() const {
    return rows *
           static_cast<std::size_t>(rows_form ? kBatchStride : kCodedTokens + kTokenMultiple);
  }
  // Products with turned means, kCodedTokens at a time.
  std::size_t mean_scores() const {
    return rows * static_cast<std::size_t>(kCodedTokens + kTokenMultiple);
  }
  std::size_t state() const { return rows * (2 + value); }
  std::size_t per_row() const { return 4 * rows; }  // decay, begin, end, offset
  std::size_t wide_rows() const {
    return static_cast<std::size_t>(kCodedTokens) * std::max(key, value);
  }
  std::size_t mean_rows() const { return static_cast<std::size_t>(kCodedTokens) * key_dim; }
  std::size_t row() const { return std::max(key, value) + 2 * key_dim; }
  std::size_t value_sums() const { return rows * value_dim; }
  // Integer coefficients: a group is at least 8 components.
  std::size_t groups() const { return rows_form ? std::max(key, value) / kRowMultiple : 0; }
  std::size_t numbers() const { return rows_form ? (rows * key + 1) / 2 : 0; }
  std::size_t query_groups() const { return groups() * rows; }
  std::size_t scales() const { return groups() * static_cast<std::size_t>(detail::kScaleRows); }
  std::size_t wide_codes() const { return rows_form ? wide_rows() / sizeof(float) : 0; }
  std::size_t integers() const {
    return numbers() + 2 * query_groups() + 4 * scales() + wide_codes();
  }
  std::size_t total() const {
    return 3 * queries() + 2 * moved() + scores() + mean_scores() + state() + per_row() +
           wide_rows() + mean_rows() + row() + value_sums() + integers();
  }
};

// For codes of at most these ranks.
Sizes sizes_of(const AttentionPlan& plan, std::int32_t key_rank, std::int32_t value_rank) {
  return {static_cast<std::size_t>(plan.padded_rows),
          static_cast<std::size_t>(std::max(plan.key_dim, padded_dim(key_rank))),
          static_cast<std::size_t>(std::max(plan.value_dim, padded_dim(value_rank))),
          static_cast<std::size_t>(plan.key_dim),
          static_cast<std::size_t>(plan.value_dim),
          plan.rows_form()};
}

const CodedSide::Part* part_of(const CodedSide* side, std::int32_t head) {
  return side != nullptr ? &side->part(head) : nullptr;
}

}  // namespace

std::size_t series_floats(const AttentionPlan& plan, std::int32_t key_rank,
                       std::int32_t value_rank) noexcept {
  return sizes_of(plan, key_rank, value_rank).total();
}

std::size_t coded_floats(const AttentionPlan& plan, const SegmentList& list) noexcept {
  std::int32_t key_rank = 0, value_rank = 0;
  bool any = false;
  for (const Segment& segment : list.segments()) {
    any |= segment.coded();
    if (segment.coded_keys) key_rank = std::max(key_rank, segment.coded_keys->highest_rank());
    if (segment.coded_values) {
      value_rank = std::max(value_rank, segment.coded_values->highest_rank());
    }
  }
  return any ? series_floats(plan, key_rank, value_rank) : 0;
}

CodedSeries::CodedSeries(const AttentionPlan& plan, const AttentionKernels& kernels,
                   const LayerShape& layer, const Queries& queries, const AttentionItem& item,
                   float* work) noexcept
    : plan_(plan),
      kernels_(kernels),
      layer_(layer),
      queries_(queries),
      item_(item),
      work_(work),
      rows_(item.positions * plan.group),
      padded_rows_(plan.rows_form() ? rows_ : (rows_ + kPanelRows - 1) / kPanelRows * kPanelRows) {}

bool CodedSeries::continues(const Segment& segment) const noexcept {
  const auto same = [this](const CodedSide* side, const Code* code, std::int32_t head) {
    const CodedSide::Part* part = part_of(side, item_.list_head);
    if (part == nullptr || code == nullptr) return part == nullptr && code == nullptr;
    return part->code.get() == code && item_.list_head - part->first_head == head;
  };
  return same(segment.coded_keys.get(), key_code_, key_head_) &&
         same(segment.coded_values.get(), value_code_, value_head_);
}

void CodedSeries::start(const Segment& first) noexcept {
  const CodedSide::Part* keys = part_of(first.coded_keys.get(), item_.list_head);
  const CodedSide::Part* values = part_of(first.coded_values.get(), item_.list_head);
  key_code_ = keys != nullptr ? keys->code.get() : nullptr;
  value_code_ = values != nullptr ? values->code.get() : nullptr;
  key_head_ = keys != nullptr ? item_.list_head - keys->first_head : 0;
  value_head_ = values != nullptr ? item_.list_head - values->first_head : 0;
  const bool rebuilt = key_code_ == nullptr || key_code_->domain() == Domain::kPreRopeKey;
  key_dim_ = rebuilt ? plan_.key_dim : padded_dim(key_code_->rank());
  value_dim_ = value_code_ != nullptr ? padded_dim(value_code_->rank()) : plan_.value_dim;
  key_layout_ = value_layout_ = {};
  if (!rebuilt) key_layout_ = detail::integer_layout(*key_code_);
  if (value_code_ != nullptr) value_layout_ = detail::integer_layout(*value_code_);
  open_ = true;
  moved_ = false;
  piece_count_ = tokens_ = 0;
  lay_out();
  load_queries();
}

void CodedSeries::lay_out() {
  const Sizes s = sizes_of(plan_, key_code_ != nullptr ? key_code_->rank() : 0,
                           value_code_ != nullptr ? value_code_->rank() : 0);
  float* work = work_;
  const auto take = [&work](std::size_t floats) {
    float* const here = work;
    work += floats;
    return here;
  };
  q_ = take(s.queries());
  turned_ = take(s.queries());
  mean_panels_ = take(s.queries());
  moved_q_ = take(s.moved());
  panels_ = take(s.moved());
  scores_ = take(s.scores());
  mean_scores_ = take(s.mean_scores());
  max_ = take(s.rows);
  sum_ = take(s.rows);
  out_ = take(s.rows * s.value);
  decay_ = take(s.rows);
  offset_ = take(s.rows);
  begin_ = reinterpret_cast<std::int32_t*>(take(s.rows));
  end_ = reinterpret_cast<std::int32_t*>(take(s.rows));
  wide_rows_ = take(s.wide_rows());
  mean_rows_ = take(s.mean_rows());
  row_ = take(s.row());
  value_sums_ = take(s.value_sums());
  numbers_ = reinterpret_cast<std::int16_t*>(take(s.numbers()));
  query_scale_ = take(s.query_groups());
  query_sum_ = take(s.query_groups());
  most_groups_ = static_cast<std::int32_t>(s.groups());
  scale_ = take(s.scales());
  scale_offset_ = take(s.scales());
  scale_work_ = take(2 * s.scales());
  wide_codes_ = reinterpret_cast<std::int8_t*>(take(s.wide_codes()));
  // Rows are padded with zeros; what fills them later leaves the padding alone.
  const auto rows = static_cast<std::size_t>(padded_rows_);
  const auto dim = static_cast<std::size_t>(plan_.key_dim);
  const bool anchored = key_code_ != nullptr && key_code_->domain() == Domain::kAnchoredKey;
  std::fill_n(q_, rows * dim, 0.0f);
  if (anchored) std::fill_n(turned_, rows * dim, 0.0f);
  if (anchored && panel_form()) std::fill_n(mean_panels_, rows * dim, 0.0f);
  const std::size_t moved = rows * static_cast<std::size_t>(key_dim_);
  std::fill_n(moved_q_, moved, 0.0f);
  if (panel_form()) std::fill_n(panels_, moved, 0.0f);
  std::fill_n(max_, rows, -std::numeric_limits<float>::infinity());
  std::fill_n(sum_, rows, 0.0f);
  std::fill_n(out_, rows * static_cast<std::size_t>(value_dim_), 0.0f);
}

void CodedSeries::add(const Segment& segment, IndexRange part, std::int32_t index) noexcept {
  const std::int32_t most = panel_form() ? kCodedTokens : kBatchTokens;
  if (tokens_ > 0 && first_index_ + tokens_ != index) flush();
  if (tokens_ == 0) first_index_ = index;
  while (!part.empty()) {
    const std::int32_t end = std::min(part.end, part.begin + most - tokens_);
    pieces_[static_cast<std::size_t>(piece_count_++)] = {
        &segment,
        part_of(segment.coded_keys.get(), item_.list_head),
        part_of(segment.coded_values.get(), item_.list_head),
        {part.begin, end},
        tokens_};
    tokens_ += end - part.begin;
    part.begin = end;
    if (tokens_ == most || piece_count_ == kMaxPieces) {
      const std::int32_t next = first_index_ + tokens_;
      flush();
      first_index_ = next;
    }
  }
}

// Ranges of the batch's tokens that the rows see; false when no row sees any.
bool CodedSeries::find_ranges() {
  const detail::CodedPiece& first = pieces_[0];
  const detail::CodedPiece& last = pieces_[static_cast<std::size_t>(piece_count_ - 1)];
  const std::int32_t oldest = first.segment->positions.at(first.part.begin);
  const std::int32_t newest = last.segment->positions.at(last.part.end - 1);
  const bool in_window = oldest >= first_seen(layer_, position(item_.positions - 1));
  std::fill_n(begin_, padded_rows_, 0);
  std::fill_n(end_, padded_rows_, 0);  // padding sees nothing
  ranges_ = !in_window || newest > position(0);
  if (!ranges_) {
    std::fill_n(end_, rows_, tokens_);
    return true;
  }
  bool any = false;
  for (std::int32_t i = 0; i < item_.positions; ++i) {
    std::int32_t from = 0, to = 0;  // positions increase over the pieces: one range
    for (std::int32_t p = 0; p < piece_count_; ++p) {
      const detail::CodedPiece& piece = pieces_[static_cast<std::size_t>(p)];
      const IndexRange seen =
          piece.segment->positions.between(first_seen(layer_, position(i)), position(i));
      from += std::clamp(seen.begin, piece.part.begin, piece.part.end) - piece.part.begin;
      to += std::clamp(seen.end, piece.part.begin, piece.part.end) - piece.part.begin;
    }
    any |= from < to;
    std::fill_n(begin_ + i * plan_.group, plan_.group, from);
    std::fill_n(end_ + i * plan_.group, plan_.group, to);
  }
  return any;
}

// ALiBi, where the layer has it, for all tokens of the batch that the row sees.
void CodedSeries::add_bias(std::int32_t row) {
  const float slope = alibi_slope(layer_, item_.head * plan_.group + row % plan_.group);
  if (slope == 0.0f) return;
  for (std::int32_t p = 0; p < piece_count_; ++p) {
    const detail::CodedPiece& piece = pieces_[static_cast<std::size_t>(p)];
    const std::int32_t n = piece.part.size();
    const IndexRange seen{std::clamp(begin_[row] - piece.at, 0, n),
                          std::clamp(end_[row] - piece.at, 0, n)};
    const std::ptrdiff_t stride = panel_form() ? padded_rows_ : 1;
    float* const s =
        scores_ + (panel_form() ? row : static_cast<std::ptrdiff_t>(row) * kBatchStride);
    add_alibi(s + (piece.at + seen.begin) * stride, stride, seen.size(), slope,
              position(row / plan_.group), [&](std::int32_t t) {
                return piece.segment->positions.at(piece.part.begin + seen.begin + t);
              });
  }
}

void CodedSeries::soften_rows() {
  for (std::int32_t r = 0; r < rows_; ++r) {
    float* s = scores_ + static_cast<std::ptrdiff_t>(r) * kBatchStride;
    if (begin_[r] >= end_[r]) {
      std::fill_n(s, tokens_, 0.0f);
      continue;
    }
    const std::int32_t count = end_[r] - begin_[r];
    if (layer_.soft_cap > 0.0f) kernels_.cap(s + begin_[r], count, layer_.soft_cap);
    add_bias(r);
    const float old = max_[r];
    const float added = kernels_.soften_row(s + begin_[r], count, &max_[r]);
    std::fill_n(s, begin_[r], 0.0f);
    std::fill(s + end_[r], s + std::max(end_[r], tokens_), 0.0f);
    const float factor = old == max_[r] ? 1.0f : std::exp2(old - max_[r]);
    sum_[r] = sum_[r] * factor + added;
    float* to = out_ + static_cast<std::ptrdiff_t>(r) * value_dim_;
    if (factor != 1.0f) {
      for (std::int32_t i = 0; i < value_dim_; ++i) to[i] *= factor;
    }
  }
}

void CodedSeries::flush() {
  if (tokens_ > 0 && find_ranges()) {
    score_batch();
    if (received_ != nullptr) {
      panel_form() ? receive_panels() : receive_rows();
      piece_count_ = tokens_ = 0;
      return;
    }
    if (panel_form()) {
      if (layer_.soft_cap > 0.0f) kernels_.cap(scores_, tokens_ * padded_rows_, layer_.soft_cap);
      for (std::int32_t r = 0; r < rows_; ++r) add_bias(r);
      kernels_.soften_panels(scores_, padded_rows_, tokens_, ranges_ ? begin_ : nullptr, end_, max_,
                           sum_, decay_);
    } else {
      soften_rows();
    }
    weigh_batch();
  }
  piece_count_ = tokens_ = 0;
}

void CodedSeries::finish() noexcept {
  flush();
  open_ = false;
}

// Value sums out of coefficient space, B c + (sum of weights) mean, [rows][plan.value_dim].
void CodedSeries::synthesise_sums(float* to) {
  const Code& code = *value_code_;
  const float* mean = code.mean(value_head_);
  if (code.rank() % kRowMultiple == 0 && code.synthesis(0) != nullptr) {
    // Rows of B times the coefficients.
    kernels_.score_rows(out_, rows_, value_dim_,
                        detail::rows_at(code.synthesis(value_head_), code.rank()), code.dim(),
                        nullptr, to, plan_.value_dim);
  } else {
    for (std::int32_t r = 0; r < rows_; ++r) {
      code.synthesise(value_head_, out_ + static_cast<std::ptrdiff_t>(r) * value_dim_,
                      to + static_cast<std::ptrdiff_t>(r) * plan_.value_dim);
    }
  }
  for (std::int32_t r = 0; mean != nullptr && r < rows_; ++r) {
    float* row = to + static_cast<std::ptrdiff_t>(r) * plan_.value_dim;
    for (std::int32_t i = 0; i < code.dim(); ++i) row[i] += sum_[r] * mean[i];
  }
}

void CodedSeries::finish(const StateView& state) noexcept {
  finish();
  const float* sums = out_;
  if (value_code_ != nullptr) {
    synthesise_sums(value_sums_);
    sums = value_sums_;
  }
  const std::int32_t width = layer_.value_dim;
  for (std::int32_t r = 0; r < rows_; ++r) {
    if (sum_[r] == 0.0f) continue;
    SoftmaxState whole{state.max[r], state.sum[r]};
    const MergeFactors factors = merge_into(whole, {max_[r], sum_[r]});
    state.max[r] = whole.max;
    state.sum[r] = whole.sum;
    const float* added = sums + static_cast<std::ptrdiff_t>(r) * plan_.value_dim;
    float* to = state.out + static_cast<std::ptrdiff_t>(r) * plan_.value_dim;
    for (std::int32_t i = 0; i < width; ++i) {
      to[i] = to[i] * factors.kept + added[i] * factors.added;
    }
  }
}

}  // namespace kvspan
