// SPDX-License-Identifier: Apache-2.0
// Weighted sums of a series's values, in coefficient space.
#include <algorithm>

#include "attention/coded/coded_series.h"

namespace kvspan {

void CodedSeries::weigh_batch() {
  for (std::int32_t p = 0; p < piece_count_; ++p) {
    const detail::CodedPiece& piece = pieces_[static_cast<std::size_t>(p)];
    panel_form() ? load_values(piece) : weigh_part(piece);
  }
  if (!panel_form()) return;
  kernels_.weigh_panels(scores_, padded_rows_, wide_rows_, value_dim_, tokens_, decay_, out_);
}

// Panel form: the piece's rows into their place among the widened.
void CodedSeries::load_values(const detail::CodedPiece& piece) {
  const std::int32_t n = piece.part.size();
  float* to = wide_rows_ + static_cast<std::ptrdiff_t>(piece.at) * value_dim_;
  if (value_code_ == nullptr) {
    kernels_.widen(piece.segment->values.head(item_.list_head).from(piece.part.begin), value_dim_,
                   n, to);
  } else if (detail::in_place(*value_code_)) {
    kernels_.widen(detail::stored_rows(*piece.values, piece.part.begin), value_dim_, n, to);
  } else {
    const auto rank = static_cast<std::size_t>(value_code_->rank());
    std::fill_n(to, n * value_dim_, 0.0f);
    piece.values->coefficients(
        piece.part.begin,
        {to, {static_cast<std::size_t>(n), rank}, {static_cast<std::size_t>(value_dim_), 1}});
  }
}

void CodedSeries::weigh_part(const detail::CodedPiece& piece) {
  const IndexRange part = piece.part;
  const auto weigh = [&](const RowsView& rows, std::int32_t n, std::int32_t at,
                         const std::byte* next = nullptr) {
    kernels_.weigh_rows(scores_ + at, kBatchStride, rows_, rows, value_dim_, n, next, out_);
  };
  if (value_code_ == nullptr) {
    weigh(piece.segment->values.head(item_.list_head).from(part.begin), part.size(), piece.at);
    return;
  }
  if (detail::in_place(*value_code_)) {
    weigh(detail::stored_rows(*piece.values, part.begin), part.size(), piece.at, keys_next(piece));
    return;
  }
  if (value_layout_.usable) {
    weigh_integers(*piece.values, part, piece.at, keys_next(piece));
    return;
  }
  const auto rank = static_cast<std::size_t>(value_code_->rank());
  for (std::int32_t t = part.begin; t < part.end; t += kCodedTokens) {
    const std::int32_t n = std::min(kCodedTokens, part.end - t);
    std::fill_n(wide_rows_, n * value_dim_, 0.0f);
    piece.values->coefficients(t, {wide_rows_,
                                   {static_cast<std::size_t>(n), rank},
                                   {static_cast<std::size_t>(value_dim_), 1}});
    weigh(detail::rows_at(wide_rows_, value_dim_), n, piece.at + t - part.begin);
  }
}

}  // namespace kvspan
