// SPDX-License-Identifier: Apache-2.0
// Scores of a coded segment: queries moved to where the coefficients are, products, means.
#include <algorithm>

#include "attention/coded_runner.h"
#include "cache/rope.h"

namespace kvspan::detail {
namespace {

constexpr float kLog2e = 1.4426950408889634f;

}  // namespace

void CodedRunner::load_queries() {
  float factor = layer.soft_cap > 0.0f ? layer.logit_scale * 2.0f * kLog2e / layer.soft_cap
                                       : layer.logit_scale * kLog2e;
  if (keys != nullptr) factor *= keys->code->gamma();
  for (std::int32_t r = 0; r < rows; ++r) {
    const float* from = queries.rows.row(item.first_position + r / plan.group,
                                         item.head * plan.group + r % plan.group);
    float* to = q + static_cast<std::ptrdiff_t>(r) * plan.key_dim;
    for (std::int32_t i = 0; i < layer.key_dim; ++i) to[i] = factor * from[i];
  }
}

// Rows as the form in use wants them: as they are, or in panels at `to`.
const float* CodedRunner::packed(const float* from, std::int32_t dim, float* to) const {
  if (!tile_form()) return from;
  for (std::int32_t r = 0; r < rows; ++r) {
    float* panel =
        to + static_cast<std::ptrdiff_t>(r / kPanelRows) * kPanelRows * dim + r % kPanelRows;
    for (std::int32_t i = 0; i < dim; ++i) panel[i * kPanelRows] = from[r * dim + i];
  }
  return to;
}

// The queries where this block's rows are; `offset` gets what every token of it has in common.
void CodedRunner::move_queries(std::int32_t anchor) {
  const bool anchored = keys != nullptr && keys->code->domain() == Domain::kAnchoredKey;
  if (keys == nullptr || keys->code->domain() == Domain::kPreRopeKey) {
    packed(q, plan.key_dim, panels);
    return;
  }
  const Code& code = *keys->code;
  float* const cosines = row;
  float* const sines = row + plan.key_dim;
  if (anchored) rope_turn(code.rope(), -anchor, code.rope().magnitude, cosines, sines);
  const float* mean = anchored ? nullptr : code.mean(head_in(keys));
  for (std::int32_t r = 0; r < rows; ++r) {
    const float* from = q + static_cast<std::ptrdiff_t>(r) * plan.key_dim;
    if (anchored) {
      float* at = turned + static_cast<std::ptrdiff_t>(r) * plan.key_dim;
      std::copy_n(from, plan.key_dim, at);
      apply_turn(code.rope(), cosines, sines, at);
      from = at;
    }
    code.project(head_in(keys), from, moved + static_cast<std::ptrdiff_t>(r) * key_dim);
    offset[r] = 0.0f;
    for (std::int32_t i = 0; mean != nullptr && i < code.dim(); ++i) offset[r] += from[i] * mean[i];
  }
  packed(moved, key_dim, panels);
  if (anchored) packed(turned, plan.key_dim, mean_panels);
}

RowsView CodedRunner::load_keys(IndexRange part) {
  if (keys == nullptr) return segment.keys.head(item.head).from(part.begin);
  const Code& code = *keys->code;
  const auto n = static_cast<std::size_t>(part.size()), r = static_cast<std::size_t>(code.rank());
  if (code.domain() != Domain::kPreRopeKey) {
    if (in_place(*keys)) return stored_rows(*keys, part.begin);
    keys->coefficients(part.begin, {key_rows, {n, r}, {static_cast<std::size_t>(key_dim), 1}});
    return rows_at(key_rows, key_dim);
  }
  const float* mean = code.mean(head_in(keys));
  for (std::int32_t t = 0; t < part.size(); ++t) {
    float* to = key_rows + static_cast<std::ptrdiff_t>(t) * key_dim;
    keys->coefficients(part.begin + t, {row, {1, r}});
    code.synthesise(head_in(keys), row, to);
    for (std::int32_t i = 0; mean != nullptr && i < code.dim(); ++i) to[i] += mean[i];
    rope_rotate(code.rope(), segment.positions.at(part.begin + t), to);
  }
  return rows_at(key_rows, key_dim);
}

void CodedRunner::score(IndexRange part) {
  const std::int32_t n = part.size();
  const RowsView k = load_keys(part);
  const bool as_they_are = keys == nullptr || keys->code->domain() == Domain::kPreRopeKey;
  if (tile_form()) {
    // Rows that are f32 and unpadded already lie as the tile form wants them.
    if (k.data != reinterpret_cast<const std::byte*>(key_rows)) {
      kernels.widen(k, key_dim, n, key_rows);
    }
    kernels.score_tile(panels, padded_rows, key_dim, key_rows, n, scores);
  } else {
    kernels.score_rows(as_they_are ? q : moved, rows, key_dim, k, n, nullptr, scores, kRunStride);
  }
  add_means(part);
}

void CodedRunner::add_means(IndexRange part) {
  if (keys == nullptr || keys->code->mean(0) == nullptr) return;
  const Code& code = *keys->code;
  const std::int32_t n = part.size();
  if (code.domain() == Domain::kPostRopeKey) {
    for (std::int32_t t = 0; t < n; ++t) {
      for (std::int32_t r = 0; r < rows; ++r) {
        scores[tile_form() ? t * padded_rows + r : r * kRunStride + t] += offset[r];
      }
    }
  } else if (code.domain() == Domain::kAnchoredKey) {
    // Tokens with gaps between them take rows of the table that are not neighbours.
    for (std::int32_t t = 0; t < n; ++t) {
      std::copy_n(code.turned_mean(head_in(keys), segment.positions.at(part.begin + t)),
                  plan.key_dim, mean_rows + static_cast<std::ptrdiff_t>(t) * plan.key_dim);
    }
    if (tile_form()) {
      kernels.score_tile(mean_panels, padded_rows, plan.key_dim, mean_rows, n, mean_scores);
      for (std::int32_t i = 0; i < n * padded_rows; ++i) scores[i] += mean_scores[i];
    } else {
      kernels.score_rows(turned, rows, plan.key_dim, rows_at(mean_rows, plan.key_dim), n, nullptr,
                         mean_scores, kRunStride);
      for (std::int32_t r = 0; r < rows; ++r) {
        for (std::int32_t t = 0; t < n; ++t) {
          scores[r * kRunStride + t] += mean_scores[r * kRunStride + t];
        }
      }
    }
  }
}

}  // namespace kvspan::detail
