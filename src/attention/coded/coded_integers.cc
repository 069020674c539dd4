// SPDX-License-Identifier: Apache-2.0
// Products of a series with integer coefficients, in rows form: with numbers scale * code + offset by
// group, a product is scale * (query . codes) + offset * (sum of the query), and a weighted sum
// weighs codes by weight * scale.
#include <algorithm>

#include "attention/coded/coded_series.h"

namespace kvspan {
namespace {

// What a kernel may ask memory for: it sees rows of bytes, so `next` is its own where rows lie so,
// and only for the first group.
const std::byte* ahead(const detail::IntegerLayout& layout, const std::byte* next,
                       std::int32_t column, std::int32_t from) {
  if (next == nullptr || layout.packed || column > 0) return nullptr;
  return next + from * layout.width;
}

}  // namespace

// Queries of the integer products, from the moved ones.
void CodedSeries::round_queries() {
  if (panel_form() || !key_layout_.usable) return;
  for (std::int32_t r = 0; r < rows_; ++r) {
    detail::round_query(moved_q_ + static_cast<std::ptrdiff_t>(r) * key_dim_, key_layout_, rows_,
                        numbers_ + static_cast<std::ptrdiff_t>(r) * key_dim_, query_scale_ + r,
                        query_sum_ + r);
  }
}

// Tokens whose scales are loaded at a time: as many as the memory for kScaleRows tokens with the
// most groups holds, but no more than their bytes have room for, where those are unpacked.
std::int32_t CodedSeries::scale_rows(const detail::IntegerLayout& layout) const {
  if (layout.packed) return detail::kScaleRows;
  return std::min(kBatchTokens, most_groups_ / layout.groups * detail::kScaleRows);
}

// Calls use(codes, first group's scales, tokens, offset in `part`) for some tokens at a time.
template <class Use>
void CodedSeries::each_codes(const CodedSide::Part& side, const detail::IntegerLayout& layout,
                          IndexRange part, Use use) {
  const std::int32_t most = scale_rows(layout);
  for (std::int32_t t = part.begin; t < part.end; t += most) {
    const std::int32_t n = std::min(most, part.end - t);
    detail::load_scales(side, layout, t, n, most, scale_, scale_offset_, scale_work_);
    use(detail::load_codes(side, layout, t, n, wide_codes_), n, t - part.begin);
  }
}

void CodedSeries::score_integers(const CodedSide::Part& side, IndexRange part, std::int32_t at,
                              const std::byte* next) {
  const detail::IntegerLayout& layout = key_layout_;
  const std::int32_t stride = scale_rows(layout);
  const auto score = [&](const std::int8_t* codes, std::int32_t n, std::int32_t from) {
    float* const scores = scores_ + at + from;
    for (std::int32_t g = 0; g < layout.groups; ++g) {
      const float* scale = scale_ + g * stride;
      const std::int32_t begin = g * layout.group,
                         end = std::min(layout.width, begin + layout.group);
      for (std::int32_t i = begin; i < end; i += kMaxCodeDim) {
        kernels_.score_codes({numbers_ + i, key_dim_, query_scale_ + g * rows_}, rows_,
                             std::min(kMaxCodeDim, end - i),
                             {codes + i, layout.width, scale, ahead(layout, next, i, from)}, n,
                             i > 0, scores, kBatchStride);
      }
      if (!layout.offsets) continue;
      const float* offset = scale_offset_ + g * stride;
      for (std::int32_t r = 0; r < rows_; ++r) {
        const float sum = query_sum_[g * rows_ + r];
        for (std::int32_t t = 0; t < n; ++t) scores[r * kBatchStride + t] += sum * offset[t];
      }
    }
  };
  each_codes(side, layout, part, score);
}

void CodedSeries::weigh_integers(const CodedSide::Part& side, IndexRange part, std::int32_t at,
                              const std::byte* next) {
  const detail::IntegerLayout& layout = value_layout_;
  const std::int32_t stride = scale_rows(layout);
  const auto weigh = [&](const std::int8_t* codes, std::int32_t n, std::int32_t from) {
    const float* const weights = scores_ + at + from;
    for (std::int32_t g = 0; g < layout.groups; ++g) {
      const std::int32_t begin = g * layout.group,
                         end = std::min(layout.width, begin + layout.group);
      kernels_.weigh_codes(
          weights, kBatchStride, rows_,
          {codes + begin, layout.width, scale_ + g * stride, ahead(layout, next, begin, from)},
          end - begin, n, out_ + begin, value_dim_);
      if (!layout.offsets) continue;
      const float* offset = scale_offset_ + g * stride;
      const std::int32_t last = std::min(end, value_code_->rank());  // padding stays zero
      for (std::int32_t r = 0; r < rows_; ++r) {
        float sum = 0.0f;
        for (std::int32_t t = 0; t < n; ++t) sum += weights[r * kBatchStride + t] * offset[t];
        for (std::int32_t i = begin; i < last; ++i) out_[r * value_dim_ + i] += sum;
      }
    }
  };
  each_codes(side, layout, part, weigh);
}

}  // namespace kvspan
