// SPDX-License-Identifier: Apache-2.0
#include "attention/bands/bands_runner.h"

#include <algorithm>
#include <limits>

#include "attention/bands/kernels/score_steps.h"
#include "attention/bands/tile_gains.h"
#include "attention/score_bias.h"
#include "attention/segments/item.h"
#include "cache/rope.h"
#include "cache/visible.h"

namespace kvspan {

BandsRunner::BandsRunner(const LayerShape& layer, const BandsStore& keys, const BandsStore& values,
                         const Queries& queries, const BandsCut& cut,
                         const TensorView<float, 2>* others, float* work, AnchorTurns& turns)
    : layer_(layer),
      keys_(keys),
      values_(values),
      queries_(queries),
      cut_(cut),
      others_(others),
      key_code_(keys.code()),
      value_code_(values.code()),
      kernels_(attention_kernels(cpu_level())),
      bands_(bands_attention_kernels(cpu_level())),
      dim_(padded_dim(key_code_.key_dim())),
      key_stride_(16 * key_code_.place_tiles()),
      query_stride_(query_stride(key_code_.scale_ranges())),
      value_places_(value_code_.places()),
      mean_stride_(key_code_.anchor_block() > 0 ? key_code_.anchor_block() : kStretchTokens),
      run_tiles_(StretchSoftmax::tiles(bands_, key_code_.fine() || value_code_.fine())),
      light_(keys.has_residuals() ? 0.0f : StretchSoftmax::kLightShare),
      batch_(std::max(1, kBatchRows / (cut.row_positions * cut.query_heads))),
      turns_(turns) {
  WorkPlaces places{work};
  place(places);
}

std::size_t BandsRunner::work_floats(const BandsStore& keys, const BandsStore& values,
                                     const BandsCut& cut) {
  const LayerShape none;
  const Queries nobody;
  AnchorTurns no_turns;
  BandsRunner runner(none, keys, values, nobody, cut, nullptr, nullptr, no_turns);
  WorkPlaces places{nullptr};
  runner.place(places);
  return places.used;
}

void BandsRunner::place(WorkPlaces& places) {
  const auto rows = static_cast<std::size_t>(cut_.row_positions * cut_.query_heads);
  const auto dim = static_cast<std::size_t>(dim_), stride = static_cast<std::size_t>(key_stride_);
  const std::size_t batch_rows = rows * static_cast<std::size_t>(batch_);
  turned_ = places.floats(rows * dim);
  mean_sums_ =
      places.floats(batch_rows * static_cast<std::size_t>(key_code_.anchored_means().sums()));
  means_ = places.floats(rows * static_cast<std::size_t>(mean_stride_));
  turned_scales_ = places.floats(batch_rows);
  moved_ = places.floats(kMovedRows * stride);
  if (key_code_.fine()) part_ = places.floats(kMovedRows * stride);
  offsets_ = places.floats(batch_rows);
  scales_ = places.floats(batch_rows * kBandScales);
  softmax_.place(places, cut_.row_positions * cut_.query_heads);
  key_gains_ = places.floats(kStretchTokens);
  value_gains_ = &keys_ == &values_ ? key_gains_ : places.floats(kStretchTokens);
  if (key_code_.before_rope()) {
    cosines_ = places.floats(dim / 2);
    sines_ = places.floats(dim / 2);
    rebuilt_ =
        places.floats(static_cast<std::size_t>(key_code_.heads() * kStretchTokens * row_stride()));
    coefficients_ = places.floats(static_cast<std::size_t>(kTile * key_code_.row_stride()));
    key_rows_ =
        places.floats(static_cast<std::size_t>(key_code_.key_width() * key_code_.row_stride()));
  }
  state_ =
      places.floats(BandsStateLayout(cut_.row_positions * cut_.query_heads, value_code_).floats);
  turned_codes_ = places.codes((static_cast<std::size_t>(key_code_.move_digits()) * batch_rows + kBandsRowsAfter) * dim);
  rounded_ = places.codes(batch_rows * static_cast<std::size_t>(query_stride_));
  const std::size_t tokens = kStretchTokens;
  key_codes_ = places.codes(tokens * static_cast<std::size_t>(key_code_.places()) + kBandsBytesAfter);
  value_codes_ = &keys_ == &values_
                     ? key_codes_
                     : places.codes(tokens * static_cast<std::size_t>(value_places_));
}

void BandsRunner::run(std::int32_t block, std::int32_t chunk, float* state) {
  block_ = block;
  rows_ = cut_.rows_of(block);
  softmax_.max = state;
  softmax_.sum = state + rows_;
  softmax_.weighed = state + 2 * rows_;
  const BandsStateLayout layout(rows_, value_code_);
  out_ = state + layout.coefficients;
  std::fill(softmax_.sum, state + layout.floats, 0.0f);
  start_from_others();
  load_queries();
  // No query of the block sees a tile that its first query is past, or that begins beyond its last.
  const std::int32_t seen_from = first_seen(layer_, position_of(0)), last = position_of(rows_ - 1);
  std::int32_t i = cut_.first_tile(chunk), end = cut_.first_tile(chunk + 1);
  while (i < end && position_of_tile(cut_.tile(i) + 1) <= seen_from) ++i;
  while (i < end && position_of_tile(cut_.tile(end - 1)) > last) --end;
  if (i < end) last_anchor_ = key_code_.anchor_of(position_of_tile(cut_.tile(end - 1)));
  anchor_ = asked_anchor_ = -1;
  batch_anchor_ = batch_anchors_ = 0;
  const BandsProducts products(bands_, rows_);
  for (std::int32_t n = 0; i < end; i += n) {
    n = std::min(run_tiles_, end - i);
    if (!cut_.some.empty()) n = together(i, n);
    run_tiles(cut_.tile(i), n);
  }
}

// How many of the tiles from the i-th read on, n at most, lie together in the store.
std::int32_t BandsRunner::together(std::int32_t i, std::int32_t n) const {
  std::int32_t count = 1;
  while (count < n && cut_.tile(i + count) == cut_.tile(i) + count) ++count;
  return count;
}

void BandsRunner::start_from_others() {
  for (std::int32_t r = 0; r < rows_; ++r) {
    const BandsCut::Row row = cut_.row(block_, r);
    softmax_.start(r, others_ == nullptr ? -std::numeric_limits<float>::infinity()
                                         : others_->row(row.position)[row.query_head]);
  }
}

void BandsRunner::load_queries() {
  const float factor = query_factor(layer_);
  std::fill_n(turned_, static_cast<std::ptrdiff_t>(rows_) * dim_, 0.0f);
  for (std::int32_t r = 0; r < rows_; ++r) {
    const BandsCut::Row row = cut_.row(block_, r);
    const float* from = queries_.rows.row(row.position, row.query_head);
    float* to = turned_ + static_cast<std::ptrdiff_t>(r) * dim_;
    for (std::int32_t i = 0; i < key_code_.key_dim(); ++i) to[i] = factor * from[i];
  }
}

// From the queries, or from the anchor before: then by the same small turn again and again, at most
// as often as a chunk has anchors, each off by one rounding.
void BandsRunner::turn_queries(std::int32_t anchor) {
  const Rope& rope = key_code_.rope();
  if (anchor_ >= 0 && anchor - anchor_ != key_code_.anchor_block()) {
    load_queries();  // tiles were left out
    anchor_ = -1;
  }
  const AnchorTurns::Turn turn =
      anchor_ < 0 ? turns_.of(-anchor, rope.magnitude) : turns_.of(-key_code_.anchor_block(), 1.0f);
  for (std::int32_t r = 0; r < rows_; ++r) {
    apply_turn(rope, turn.cosines, turn.sines, turned_ + static_cast<std::ptrdiff_t>(r) * dim_);
  }
  anchor_ = anchor;
}

// The queries turned to `count` anchors from `first` on, in coefficient space times the steps,
// rounded.
void BandsRunner::move_to_anchors(std::int32_t first, std::int32_t count) {
  const std::int32_t heads = key_code_.heads(), together = head_rows();
  const AnchoredMeans& means = key_code_.anchored_means();
  const bool turns = key_code_.anchor_block() > 0;
  float* sums = mean_sums_;
  for (std::int32_t a = 0; a < count; ++a) {
    if (turns) turn_queries(first + a * key_code_.anchor_block());
    const float* row = turned_;
    for (std::int32_t h = 0; h < heads; ++h) {
      for (std::int32_t r = 0; r < together; ++r, row += dim_, sums += means.sums()) {
        const std::ptrdiff_t to = (static_cast<std::ptrdiff_t>(h) * count + a) * together + r;
        float sum = 0.0f;
        const float largest = bands_.round(row, dim_, turned_codes_ + to * dim_, &sum);
        turned_scales_[to] = largest / 127.0f;
        if (key_code_.fine()) {
          round_rest(row, dim_, largest, turned_codes_ + to * dim_, turned_codes_ + (heads * count * together + to) * dim_);
        }
        if (turns) bands_.fold(means, h, row, sums);
      }
    }
  }
  move_queries(count);
}

// `count` turned queries from the at-th on, of `all` of each digit, in a head's coefficients to moved_.
void BandsRunner::project_rows(std::int32_t head, std::ptrdiff_t at, std::ptrdiff_t all, std::int32_t count) {
  const std::int32_t digits = key_code_.move_digits();
  for (std::int32_t i = 0; i < digits * digits; ++i) {
    const std::int32_t of_basis = i / digits, of_query = i % digits;
    float* const to = i == 0 ? moved_ : part_;
    bands_.project(key_code_.key_tiles(head, of_basis), key_code_.place_tiles(), key_code_.dim_quads(),
                   key_code_.key_scales(head), turned_codes_ + (of_query * all + at) * dim_, dim_, count, to,
                   key_stride_);
    if (i == 0) continue;
    const float unit = (of_basis > 0 ? 1.0f / kDigitBase : 1.0f) * (of_query > 0 ? 1.0f / kDigitBase : 1.0f);
    for (std::int32_t k = 0; k < count * key_stride_; ++k) moved_[k] += unit * part_[k];
  }
}

// A head's matrix, which stays in the first-level cache, meets its rows of all anchors.
void BandsRunner::move_queries(std::int32_t count) {
  const std::int32_t together = head_rows(), rows = together * count;
  for (std::int32_t h = 0; h < key_code_.heads(); ++h) {
    for (std::int32_t from = 0; from < rows; from += kMovedRows) {
      const std::int32_t n = std::min(kMovedRows, rows - from);
      const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(h) * rows + from;
      project_rows(h, at, key_code_.heads() * rows, n);
      for (std::int32_t i = 0; i < n; ++i) {
        const std::ptrdiff_t anchor = (from + i) / together;
        const std::ptrdiff_t row = anchor * rows_ + h * together + (from + i) % together;
        const float unit = turned_scales_[at + i];
        const float sum = round_by_ranges(bands_, key_code_.scale_ranges(),
                                        moved_ + static_cast<std::ptrdiff_t>(i) * key_stride_, unit,
                                        rounded_ + row * query_stride_, scales_ + row * kBandScales);
        offsets_[row] = 0.5f * unit * sum;
      }
    }
  }
}

// asked_ and means_ become those of an anchor, with those after it where it is not moved to yet.
void BandsRunner::use_anchor(std::int32_t anchor) {
  const std::int32_t block = key_code_.anchor_block();
  const auto index = [&] { return block > 0 ? (anchor - batch_anchor_) / block : 0; };
  if (index() >= batch_anchors_) {
    batch_anchor_ = anchor;
    // Where tiles are left out, the next anchor is not known to be needed.
    batch_anchors_ =
        block > 0 && cut_.some.empty() ? std::min(batch_, (last_anchor_ - anchor) / block + 1) : 1;
    move_to_anchors(anchor, batch_anchors_);
  }
  const std::ptrdiff_t row = static_cast<std::ptrdiff_t>(index()) * rows_;
  asked_ = {rounded_ + row * query_stride_, query_stride_, scales_ + row * kBandScales,
            offsets_ + row, rows_};
  asked_anchor_ = anchor;
  if (block == 0) return copy_means();
  const AnchoredMeans& means = key_code_.anchored_means();
  bands_.means(means, mean_sums_ + row * means.sums(), rows_, means_, mean_stride_);
}

// Where nothing is turned, a row makes the same of the mean everywhere.
void BandsRunner::copy_means() {
  const float* row = turned_;
  float* to = means_;
  for (std::int32_t r = 0; r < rows_; ++r, row += dim_, to += mean_stride_) {
    const float* mean = key_code_.key_mean(r / head_rows());
    float sum = 0.0f;
    for (std::int32_t i = 0; i < key_code_.key_dim(); ++i) sum += row[i] * mean[i];
    std::fill_n(to, mean_stride_, sum);
  }
}

void BandsRunner::run_tiles(std::int32_t tile, std::int32_t n) {
  if (key_code_.before_rope()) {
    for (std::int32_t i = 0; i < n; ++i) {
      read_tile(tile, i, [] {});
      rebuild_keys(tile, i);
    }
    score_rebuilt(n * kTile);
  } else {
    const std::int32_t block = key_code_.anchor_block();
    for (std::int32_t i = 0, end = 0; i < n; i = end) {
      const std::int32_t position = position_of_tile(tile + i);
      end = block > 0 ? std::min(n, i + (block - position % block) / kTile) : n;
      score_tiles(tile, i, end);
    }
  }
  const BandsWeights weights = soften(tile, n);
  if (weights.rows > 0) bands_.weigh(value_codes_, n, value_places_ / 4, value_code_.layout().narrow_quads(), weights);
}

// Codes and gains of tile `index` of the stretch; between() is called some times on the way.
template <class Between>
void BandsRunner::read_tile(std::int32_t first, std::int32_t index, const Between& between) {
  constexpr std::int32_t kAhead = 2;  // tiles that memory is asked for before they are read
  const std::int32_t tile = first + index;
  keys_.ask_for(tile + kAhead);
  detail::load_gains(keys_, tile, key_gains_ + index * kTile);
  keys_.unpack(tile, key_codes(index), between);
  if (&keys_ == &values_) return;
  values_.ask_for(tile + kAhead);
  detail::load_gains(values_, tile, value_gains_ + index * kTile);
  values_.unpack(tile, value_codes_ + static_cast<std::ptrdiff_t>(index) * value_places_ * kTile,
                 between);
}

// Reads tiles [from, end) of the stretch, which are of one anchor, and makes their scores.
void BandsRunner::score_tiles(std::int32_t tile, std::int32_t from, std::int32_t end) {
  const std::int32_t block = key_code_.anchor_block(), position = position_of_tile(tile + from);
  const std::int32_t anchor = key_code_.anchor_of(position);
  if (anchor != asked_anchor_) use_anchor(anchor);
  const BandsScores to{key_gains_ + from * kTile, means_ + (block > 0 ? position % block : 0),
                       mean_stride_, softmax_.scores + from * kTile, kStride};
  if (bands_.score_part != nullptr && rows_ <= kBandsPartRows) {
    ScoreSteps steps(bands_, key_code_.scale_ranges(), asked_, to);
    for (std::int32_t i = from; i < end; ++i) {
      read_tile(tile, i, [&] { steps.step(); });
      steps.add(key_codes(i));
    }
    return steps.finish();
  }
  for (std::int32_t i = from; i < end; ++i) read_tile(tile, i, [] {});
  bands_.score(key_codes(from), end - from, key_code_.scale_ranges(), key_code_.layout().narrow_quads(), asked_, to);
}

// Of tile `index` of the stretch: rows R(t)(B_k c^ + mu) of every head,
// [heads][kStretchTokens][row_stride()].
void BandsRunner::rebuild_keys(std::int32_t first_tile, std::int32_t index) {
  const std::int8_t* const codes = key_codes(index);
  const float* const gains = key_gains_ + index * kTile;
  const std::int32_t position = position_of_tile(first_tile + index);
  const Rope& rope = key_code_.rope();
  const std::int32_t places = key_code_.places(), dim = key_code_.key_dim();
  const std::int32_t padded = key_code_.row_stride(), stride = row_stride();
  for (std::int32_t t = 0; t < kTile; ++t) {
    float* const c = coefficients_ + t * padded;
    for (std::int32_t p = 0; p < places; ++p) {
      const std::int8_t code = codes[p / 4 * 4 * kTile + 4 * t + p % 4];
      c[p] = gains[t] * key_code_.steps()[p] * (static_cast<float>(code) + 0.5f);
    }
    std::fill(c + places, c + padded, 0.0f);
  }
  float* const first = rebuilt_ + static_cast<std::ptrdiff_t>(index) * kTile * stride;
  const std::ptrdiff_t head_stride = static_cast<std::ptrdiff_t>(kStretchTokens) * stride;
  if (!widened_) key_code_.widen(key_code_.key_rows(0), key_code_.key_width(), padded, key_rows_);
  widened_ = true;
  for (std::int32_t h = 0; h < key_code_.heads(); ++h) {
    const float* rows = key_rows_ + static_cast<std::ptrdiff_t>(h) * dim * padded;
    const RowsView b{reinterpret_cast<const std::byte*>(rows), padded, Element::kF32};
    kernels_.score_rows(coefficients_, kTile, padded, b, dim, nullptr, first + h * head_stride,
                        stride);
  }
  for (std::int32_t t = 0; t < kTile; ++t) {
    rope_turn(rope, position + t, rope.magnitude, cosines_, sines_);
    for (std::int32_t h = 0; h < key_code_.heads(); ++h) {
      float* const row = first + h * head_stride + static_cast<std::ptrdiff_t>(t) * stride;
      const float* mean = key_code_.key_mean(h);
      for (std::int32_t j = 0; j < dim; ++j) row[j] += mean[j];
      std::fill(row + dim, row + stride, 0.0f);
      apply_turn(rope, cosines_, sines_, row);
    }
  }
}

void BandsRunner::score_rebuilt(std::int32_t tokens) {
  const std::int32_t together = head_rows();
  for (std::int32_t h = 0; h < key_code_.heads(); ++h) {
    const float* rows = rebuilt_ + static_cast<std::ptrdiff_t>(h) * kStretchTokens * row_stride();
    const RowsView keys{reinterpret_cast<const std::byte*>(rows), row_stride(), Element::kF32};
    const std::ptrdiff_t row = static_cast<std::ptrdiff_t>(h) * together;
    kernels_.score_rows(turned_ + row * dim_, together, dim_, keys, tokens, nullptr,
                        softmax_.scores + row * kStride, kStride);
  }
}

// Scores to weights times gains, rounded, of the rows that are worth summing.
BandsWeights BandsRunner::soften(std::int32_t tile, std::int32_t n) {
  const std::int32_t tokens = n * kTile, position = position_of_tile(tile);
  std::int32_t escaped[kStretchTokens], escapes = 0;
  for (std::int32_t i = 0; i < n; ++i) {
    const std::uint16_t bits = keys_.escaped(tile + i);
    for (std::int32_t t = 0; bits >> t != 0; ++t) {
      if ((bits >> t & 1) != 0) escaped[escapes++] = i * kTile + t;
    }
  }
  const auto begin = [&](std::int32_t r, float* s) {
    const std::int32_t query = position_of(r);
    const std::int32_t from = std::clamp(first_seen(layer_, query) - position, 0, tokens);
    const std::int32_t end = std::clamp(query + 1 - position, 0, tokens);
    if (from >= end) return tokens;
    if (layer_.soft_cap > 0.0f) kernels_.cap(s + from, end - from, layer_.soft_cap);
    if (!layer_.alibi.empty()) {
      const std::int32_t head = cut_.row(block_, r).query_head;
      add_alibi(s + from, 1, end - from, alibi_slope(layer_, head), query,
                [&](std::int32_t t) { return position + from + t; });
    }
    std::fill(s + end, s + tokens, -std::numeric_limits<float>::infinity());
    for (std::int32_t i = 0; i < escapes; ++i) {
      s[escaped[i]] = -std::numeric_limits<float>::infinity();
    }
    return from;
  };
  const auto out = [&](std::int32_t r) { return out_ + static_cast<std::ptrdiff_t>(r) * value_code_.row_stride(); };
  return softmax_.soften(rows_, tokens, value_gains_, light_, begin, out);
}

}  // namespace kvspan
