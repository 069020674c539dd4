// SPDX-License-Identifier: Apache-2.0
// The part of an item that lies in a series of coded segments: attention in coefficient space.
//
// A series is consecutive segments whose key code and value code of the head are the same objects.
// Methods code a few tokens at a time with codes that live long, so series are long where segments
// are short.
// Keys. The query is moved to where the coefficients are, once per series (post-RoPE), or once per
// anchor block: q.k = q.mean + (B^T q).c, and for anchored keys, with q_a = R(t_a)^T q,
// q.k = (B^T q_a).c + q_a.Rot(t - t_a) mu. Pre-RoPE keys are rebuilt and turned, row by row. Scores
// are multiplied by the code's gamma.
// Values. Weighted sums stay coefficients until the end of the series: sum a v = B (sum a c) + mean
// (sum a).
// Tokens are gathered into batches, whatever the segments' lengths: softmax goes over a batch.
// Floating-point coefficients of a rank that is a multiple of 8 are read in place by the kernels of
// full-rank rows. Integer ones are multiplied as integers where few queries ask (rows form), with
// queries rounded to 16 bits (attention/rows/integer_rows.h), bytes in place, narrower codes unpacked to
// bytes. What remains, and every coefficient in panel form, is decoded some tokens at a time.
// A side without a code takes part as it is: the other side may be coded.
// Source: in coefficient space first by Saxena et al., 2024 (Eigen Attention).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "attention/rows/integer_rows.h"
#include "attention/segments/item.h"
#include "cache/code/coded_side.h"

namespace kvspan {

// Tokens decoded at a time.
inline constexpr std::int32_t kCodedTokens = kPanelTokens;
// Tokens of a batch in rows form, and a row of its scores. Longer than a series of full-rank rows:
// coefficients are shorter than rows, and each batch has its price. Scores of four rows are 16 KiB.
inline constexpr std::int32_t kBatchTokens = 4 * kRowsTokens;
inline constexpr std::int32_t kBatchStride = kBatchTokens + kScoreMultiple;

// Floats of working memory that a series needs, for codes of at most these ranks; and for any coded
// segment of a list, 0 when there is none. The plan's shapes are set.
std::size_t series_floats(const AttentionPlan& plan, std::int32_t key_rank,
                       std::int32_t value_rank) noexcept;
std::size_t coded_floats(const AttentionPlan& plan, const SegmentList& list) noexcept;

namespace detail {

// Tokens `part` of a segment, as the tokens at, at + 1 ... of a batch.
struct CodedPiece {
  const Segment* segment = nullptr;
  const CodedSide::Part* keys = nullptr;    // null: full rank
  const CodedSide::Part* values = nullptr;  // null: full rank
  IndexRange part;
  std::int32_t at = 0;
};

// Coefficients as kernels read rows, where their storage allows it.
inline bool in_place(const Code& code) {
  const CodecKind kind = code.codec().spec().kind;
  return (kind == CodecKind::kF32 || kind == CodecKind::kF16) && code.rank() % kRowMultiple == 0;
}

inline RowsView stored_rows(const CodedSide::Part& part, std::int32_t first) {
  const Element element =
      part.code->codec().spec().kind == CodecKind::kF32 ? Element::kF32 : Element::kF16;
  return RowsView{part.payload.data(), part.code->rank(), element}.from(first);
}

inline RowsView rows_at(const float* rows, std::int32_t stride) {
  return {reinterpret_cast<const std::byte*>(rows), stride, Element::kF32};
}

}  // namespace detail

// One series after the other over an item's segments: start, add ..., finish. `work` holds
// coded_floats() and belongs to the series for as long as it is used.
class CodedSeries {
 public:
  CodedSeries(const AttentionPlan& plan, const AttentionKernels& kernels, const LayerShape& layer,
           const Queries& queries, const AttentionItem& item, float* work) noexcept;

  // Asks the memory for the beginning of a coded segment some way ahead of `current`, which memory
  // of its own makes hard to foresee for hardware. `next` are the segments after the current one.
  void foresee(const Segment& current, std::span<const Segment> next) noexcept;

  bool open() const noexcept { return open_; }
  // Whether the segment can be added to the open series.
  bool continues(const Segment& segment) const noexcept;
  void start(const Segment& first) noexcept;
  // Attends to the tokens `part` of a segment that continues the series, now or later; `index` is the
  // first one's in the list.
  void add(const Segment& segment, IndexRange part, std::int32_t index) noexcept;
  // Attends to what remains and merges the series's outcome into `state`.
  void finish(const StateView& state) noexcept;

  // From now on nothing is attended: received[i] gets, for token index i of the list, the sum over
  // the rows of 2^(score - lse), lse [rows] in base 2. Then finish() ends a series.
  void receive(const float* lse, float* received) noexcept {
    lse_ = lse;
    received_ = received;
  }
  void finish() noexcept;

 private:
  bool panel_form() const { return !plan_.rows_form(); }
  std::int32_t position(std::int32_t i) const {
    return queries_.positions[static_cast<std::size_t>(item_.first_position + i)];
  }

  // coded_ahead.cc
  // What is read after a piece's keys, its values, and after its values, the keys of the next
  // batch; null where that is not known. Their scales are asked for at once.
  const std::byte* values_next(const detail::CodedPiece& piece) const;
  const std::byte* keys_next(const detail::CodedPiece& piece) const;
  // coded_series.cc
  void lay_out();
  void flush();
  bool find_ranges();
  void add_bias(std::int32_t row);
  void soften_rows();
  void synthesise_sums(float* to);
  // coded_scores.cc
  void load_queries();
  void score_batch();
  void score_part(const detail::CodedPiece& piece, IndexRange part, std::int32_t at);
  void move_queries(std::int32_t anchor);
  void pack(const float* from, std::int32_t dim, float* to) const;
  void score_loaded(const float* q, const RowsView& rows, std::int32_t n, std::int32_t at,
                    const std::byte* next = nullptr);
  void rebuild_keys(const detail::CodedPiece& piece, IndexRange part);
  void add_means(const detail::CodedPiece& piece, IndexRange part, std::int32_t at);
  // coded_integers.cc
  void round_queries();
  std::int32_t scale_rows(const detail::IntegerLayout& layout) const;
  template <class Use>
  void each_codes(const CodedSide::Part& side, const detail::IntegerLayout& layout, IndexRange part,
                  Use use);
  void score_integers(const CodedSide::Part& side, IndexRange part, std::int32_t at,
                      const std::byte* next);
  void weigh_integers(const CodedSide::Part& side, IndexRange part, std::int32_t at,
                      const std::byte* next);
  // received.cc
  void receive_rows();
  void receive_panels();
  // coded_values.cc
  void weigh_batch();
  void weigh_part(const detail::CodedPiece& piece);
  void load_values(const detail::CodedPiece& piece);

  const AttentionPlan& plan_;
  const AttentionKernels& kernels_;
  const LayerShape& layer_;
  const Queries& queries_;
  const AttentionItem& item_;
  float* const work_;
  std::int32_t rows_ = 0, padded_rows_ = 0;
  const float* lse_ = nullptr;  // [rows], when receiving
  float* received_ = nullptr;   // null: attend

  // Of the open series.
  bool open_ = false;
  const Code* key_code_ = nullptr;              // null: full rank
  const Code* value_code_ = nullptr;            // null: full rank
  std::int32_t key_head_ = 0, value_head_ = 0;  // the item's head within the codes
  std::int32_t key_dim_ = 0;                    // of the scores' products, padded
  std::int32_t value_dim_ = 0;                  // of the weighted sums, padded
  bool moved_ = false;                          // queries are where the coefficients are
  std::int32_t anchor_ = 0;                     // at which anchor

  detail::IntegerLayout key_layout_, value_layout_;

  // The batch.
  static constexpr std::int32_t kMaxPieces = 16;
  std::array<detail::CodedPiece, kMaxPieces> pieces_;
  std::int32_t piece_count_ = 0;
  std::int32_t tokens_ = 0;
  std::int32_t first_index_ = 0;        // of the batch's first token in the list
  bool ranges_ = false;                 // whether some row does not see all of it
  const Segment* following_ = nullptr;  // the segment after the last one added; null: not known

  // Working memory, laid out at start.
  float* q_ = nullptr;        // [rows][plan.key_dim], scaled
  float* turned_ = nullptr;   // the same at the block's anchor
  float* moved_q_ = nullptr;  // [rows][key_dim]
  float* panels_ = nullptr;   // what the scores' products read, for the panel form
  float* mean_panels_ = nullptr;
  float *scores_ = nullptr, *mean_scores_ = nullptr;
  float *max_ = nullptr, *sum_ = nullptr, *out_ = nullptr;  // of this series alone
  float *decay_ = nullptr, *offset_ = nullptr;
  std::int32_t *begin_ = nullptr, *end_ = nullptr;
  float* wide_rows_ = nullptr;    // [kCodedTokens][key_dim or value_dim]
  float* mean_rows_ = nullptr;   // [kCodedTokens][plan.key_dim]
  float* row_ = nullptr;         // one row of any kind
  float* value_sums_ = nullptr;  // [rows][plan.value_dim]
  // Integer coefficients in rows form:
  std::int16_t* numbers_ = nullptr;                      // [rows][key_dim]
  float *query_scale_ = nullptr, *query_sum_ = nullptr;  // [groups][rows]
  std::int32_t most_groups_ = 0;                         // that there is room for
  float *scale_ = nullptr, *scale_offset_ = nullptr;     // [groups][scale_rows]
  float* scale_work_ = nullptr;                          // [2 groups][scale_rows]
  std::int8_t* wide_codes_ = nullptr;                     // [kScaleRows][key_dim or value_dim]
};

}  // namespace kvspan
