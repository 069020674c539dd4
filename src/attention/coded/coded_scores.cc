// SPDX-License-Identifier: Apache-2.0
// Scores of a series of coded segments: queries moved to where the coefficients are, products, means.
#include <algorithm>

#include "attention/coded/coded_series.h"
#include "cache/rope.h"

namespace kvspan {

void CodedSeries::load_queries() {
  float factor = query_factor(layer_);
  if (key_code_ != nullptr) factor *= key_code_->gamma();
  for (std::int32_t r = 0; r < rows_; ++r) {
    const float* from = queries_.rows.row(item_.first_position + r / plan_.group,
                                          item_.head * plan_.group + r % plan_.group);
    float* to = q_ + static_cast<std::ptrdiff_t>(r) * plan_.key_dim;
    for (std::int32_t i = 0; i < layer_.key_dim; ++i) to[i] = factor * from[i];
  }
}

// Rows in panels, as the panel form wants them.
void CodedSeries::pack(const float* from, std::int32_t dim, float* to) const {
  if (!panel_form()) return;
  for (std::int32_t r = 0; r < rows_; ++r) {
    float* panel =
        to + static_cast<std::ptrdiff_t>(r / kPanelRows) * kPanelRows * dim + r % kPanelRows;
    for (std::int32_t i = 0; i < dim; ++i) panel[i * kPanelRows] = from[r * dim + i];
  }
}

// The queries where these rows are; `offset_` gets what all tokens have in common.
void CodedSeries::move_queries(std::int32_t anchor) {
  if (moved_ && anchor == anchor_) return;
  moved_ = true;
  anchor_ = anchor;
  if (key_code_ == nullptr || key_code_->domain() == Domain::kPreRopeKey) {
    pack(q_, plan_.key_dim, panels_);
    return;
  }
  const Code& code = *key_code_;
  const bool anchored = code.domain() == Domain::kAnchoredKey;
  float* const cosines = row_;
  float* const sines = row_ + plan_.key_dim;
  if (anchored) rope_turn(code.rope(), -anchor, code.rope().magnitude, cosines, sines);
  const float* mean = anchored ? nullptr : code.mean(key_head_);
  // Kernels read B as it is.
  const bool whole = code.rank() % kRowMultiple == 0 && code.synthesis(0) != nullptr;
  for (std::int32_t r = 0; r < rows_; ++r) {
    const float* from = q_ + static_cast<std::ptrdiff_t>(r) * plan_.key_dim;
    if (anchored) {
      float* at = turned_ + static_cast<std::ptrdiff_t>(r) * plan_.key_dim;
      std::copy_n(from, plan_.key_dim, at);
      apply_turn(code.rope(), cosines, sines, at);
      from = at;
    }
    if (!whole) code.project(key_head_, from, moved_q_ + static_cast<std::ptrdiff_t>(r) * key_dim_);
    offset_[r] = 0.0f;
    for (std::int32_t i = 0; mean != nullptr && i < code.dim(); ++i) {
      offset_[r] += from[i] * mean[i];
    }
  }
  if (whole) {  // B^T q: rows of B weighed by the query
    std::fill_n(moved_q_, rows_ * key_dim_, 0.0f);
    kernels_.weigh_rows(anchored ? turned_ : q_, plan_.key_dim, rows_,
                        detail::rows_at(code.synthesis(key_head_), code.rank()), code.rank(),
                        code.dim(), nullptr, moved_q_);
  }
  pack(moved_q_, key_dim_, panels_);
  round_queries();
  if (anchored && code.mean(0) != nullptr) pack(turned_, plan_.key_dim, mean_panels_);
}

void CodedSeries::score_batch() {
  for (std::int32_t p = 0; p < piece_count_; ++p) {
    const detail::CodedPiece& piece = pieces_[static_cast<std::size_t>(p)];
    if (key_code_ == nullptr || key_code_->domain() != Domain::kAnchoredKey) {
      move_queries(0);
      score_part(piece, piece.part, piece.at);
      continue;
    }
    const Positions& positions = piece.segment->positions;
    for (IndexRange rest = piece.part; !rest.empty();) {
      const std::int32_t anchor = key_code_->anchor_of(positions.at(rest.begin));
      const std::int32_t block = key_code_->anchor_block();
      const std::int32_t next = positions.lower_bound(anchor - block / 2 + block);
      const IndexRange part{rest.begin, std::min(rest.end, next)};
      move_queries(anchor);
      score_part(piece, part, piece.at + part.begin - piece.part.begin);
      rest.begin = part.end;
    }
  }
}

// Tokens `part` of the piece's segment, which are at, at + 1 ... of the batch.
void CodedSeries::score_part(const detail::CodedPiece& piece, IndexRange part, std::int32_t at) {
  if (key_code_ == nullptr) {
    score_loaded(q_, piece.segment->keys.head(item_.list_head).from(part.begin), part.size(), at);
    return;
  }
  const bool rebuilt = key_code_->domain() == Domain::kPreRopeKey;
  if (!rebuilt && detail::in_place(*key_code_)) {
    score_loaded(moved_q_, detail::stored_rows(*piece.keys, part.begin), part.size(), at,
                 values_next(piece));
    add_means(piece, part, at);
    return;
  }
  if (key_layout_.usable && !panel_form()) {
    score_integers(*piece.keys, part, at, values_next(piece));
    add_means(piece, part, at);
    return;
  }
  const auto rank = static_cast<std::size_t>(key_code_->rank());
  for (std::int32_t t = part.begin; t < part.end; t += kCodedTokens) {
    const IndexRange some{t, std::min(part.end, t + kCodedTokens)};
    std::fill_n(wide_rows_, some.size() * key_dim_, 0.0f);
    if (rebuilt) {
      rebuild_keys(piece, some);
    } else {
      piece.keys->coefficients(t, {wide_rows_,
                                   {static_cast<std::size_t>(some.size()), rank},
                                   {static_cast<std::size_t>(key_dim_), 1}});
    }
    score_loaded(rebuilt ? q_ : moved_q_, detail::rows_at(wide_rows_, key_dim_), some.size(),
                 at + t - part.begin);
  }
  if (!rebuilt) add_means(piece, part, at);
}

// Products of the queries (those in `panels_` for the panel form) with n rows.
void CodedSeries::score_loaded(const float* q, const RowsView& rows, std::int32_t n, std::int32_t at,
                            const std::byte* next) {
  if (!panel_form()) {
    kernels_.score_rows(q, rows_, key_dim_, rows, n, next, scores_ + at, kBatchStride);
    return;
  }
  if (rows.data != reinterpret_cast<const std::byte*>(wide_rows_)) {
    kernels_.widen(rows, key_dim_, n, wide_rows_);
  }
  kernels_.score_panels(panels_, padded_rows_, key_dim_, wide_rows_, n, scores_ + at * padded_rows_);
}

void CodedSeries::rebuild_keys(const detail::CodedPiece& piece, IndexRange part) {
  const Code& code = *key_code_;
  const float* mean = code.mean(key_head_);
  for (std::int32_t t = 0; t < part.size(); ++t) {
    float* to = wide_rows_ + static_cast<std::ptrdiff_t>(t) * key_dim_;
    piece.keys->coefficients(part.begin + t, {row_, {1, static_cast<std::size_t>(code.rank())}});
    code.synthesise(key_head_, row_, to);
    for (std::int32_t i = 0; mean != nullptr && i < code.dim(); ++i) to[i] += mean[i];
    rope_rotate(code.rope(), piece.segment->positions.at(part.begin + t), to);
  }
}

void CodedSeries::add_means(const detail::CodedPiece& piece, IndexRange part, std::int32_t at) {
  const Code& code = *key_code_;
  if (code.mean(0) == nullptr) return;
  if (code.domain() == Domain::kPostRopeKey) {
    for (std::int32_t r = 0; !panel_form() && r < rows_; ++r) {
      float* s = scores_ + static_cast<std::ptrdiff_t>(r) * kBatchStride + at;
      for (std::int32_t t = 0; t < part.size(); ++t) s[t] += offset_[r];
    }
    for (std::int32_t t = 0; panel_form() && t < part.size(); ++t) {
      float* s = scores_ + static_cast<std::ptrdiff_t>(at + t) * padded_rows_;
      for (std::int32_t r = 0; r < rows_; ++r) s[r] += offset_[r];
    }
    return;
  }
  for (std::int32_t t = part.begin; t < part.end; t += kCodedTokens) {
    const std::int32_t n = std::min(kCodedTokens, part.end - t), first = at + t - part.begin;
    const Positions& positions = piece.segment->positions;
    const float* means = code.turned_mean(key_head_, positions.at(t));
    if (panel_form() || positions.at(t + n - 1) - positions.at(t) != n - 1) {
      // Tokens with gaps between them take rows of the table that are not neighbours.
      for (std::int32_t i = 0; i < n; ++i) {
        std::copy_n(code.turned_mean(key_head_, positions.at(t + i)), plan_.key_dim,
                    mean_rows_ + static_cast<std::ptrdiff_t>(i) * plan_.key_dim);
      }
      means = mean_rows_;
    }
    if (panel_form()) {
      kernels_.score_panels(mean_panels_, padded_rows_, plan_.key_dim, means, n, mean_scores_);
      float* s = scores_ + static_cast<std::ptrdiff_t>(first) * padded_rows_;
      for (std::int32_t i = 0; i < n * padded_rows_; ++i) s[i] += mean_scores_[i];
      continue;
    }
    kernels_.score_rows(turned_, rows_, plan_.key_dim, detail::rows_at(means, plan_.key_dim), n,
                        nullptr, mean_scores_, kCodedTokens);
    for (std::int32_t r = 0; r < rows_; ++r) {
      float* s = scores_ + static_cast<std::ptrdiff_t>(r) * kBatchStride + first;
      const float* m = mean_scores_ + static_cast<std::ptrdiff_t>(r) * kCodedTokens;
      for (std::int32_t i = 0; i < n; ++i) s[i] += m[i];
    }
  }
}

}  // namespace kvspan
