// SPDX-License-Identifier: Apache-2.0
// What attend_coded works with: the queries of an item, one coded segment, and its part of the
// working memory. Scores come from coded_scores.cc, the rest from coded_item.cc.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/coded_item.h"
#include "cache/coded_side.h"

namespace kvspan::detail {

// Coefficients as kernels read rows, where their storage allows it.
inline bool in_place(const CodedSide::Part& part) {
  const CodecKind kind = part.code->codec().spec().kind;
  return (kind == CodecKind::kF32 || kind == CodecKind::kF16) &&
         part.code->rank() % kRowMultiple == 0;
}

inline RowsView stored_rows(const CodedSide::Part& part, std::int32_t first) {
  const Element element =
      part.code->codec().spec().kind == CodecKind::kF32 ? Element::kF32 : Element::kF16;
  return RowsView{part.payload.data(), part.code->rank(), element}.from(first);
}

inline RowsView rows_at(const float* rows, std::int32_t stride) {
  return {reinterpret_cast<const std::byte*>(rows), stride, Element::kF32};
}

struct CodedRunner {
  const AttentionPlan& plan;
  const AttentionKernels& kernels;
  const LayerShape& layer;
  const Queries& queries;
  const AttentionItem& item;
  const Segment& segment;
  const CodedSide::Part* keys;    // null: full rank
  const CodedSide::Part* values;  // null: full rank
  std::int32_t rows = 0, padded_rows = 0;
  std::int32_t key_dim = 0;    // of the scores' products
  std::int32_t value_dim = 0;  // of the weighted sums
  float* q = nullptr;          // [rows][plan.key_dim], scaled
  float* turned = nullptr;     // the same at the block's anchor
  float* moved = nullptr;      // [rows][key_dim]
  float* panels = nullptr;     // `moved` for the tile form
  float* mean_panels = nullptr;
  float *scores = nullptr, *mean_scores = nullptr;
  float *max = nullptr, *sum = nullptr, *out = nullptr;  // of this segment alone
  float *decay = nullptr, *offset = nullptr;
  std::int32_t *begin = nullptr, *end = nullptr;
  float *key_rows = nullptr, *value_rows = nullptr, *mean_rows = nullptr, *row = nullptr;

  bool tile_form() const { return !plan.rows_form(); }
  std::int32_t head_in(const CodedSide::Part* part) const { return item.head - part->first_head; }
  std::int32_t position(std::int32_t i) const {
    return queries.positions[static_cast<std::size_t>(item.first_position + i)];
  }

  void lay_out(float* work);
  void load_queries();
  void run(IndexRange part);
  void run_block(IndexRange part);
  void move_queries(std::int32_t anchor);
  const float* packed(const float* from, std::int32_t dim, float* to) const;
  void score(IndexRange part);
  void add_means(IndexRange part);
  RowsView load_keys(IndexRange part);
  RowsView load_values(IndexRange part);
  void soften_rows(IndexRange part);
  bool find_ranges(IndexRange part);
  void merge_into_state(const StateView& state);
};

}  // namespace kvspan::detail
