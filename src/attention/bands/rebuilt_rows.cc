// SPDX-License-Identifier: Apache-2.0
#include "attention/bands/rebuilt_rows.h"

#include <algorithm>

#include "attention/bands/tile_gains.h"
#include "cache/rope.h"
#include "cache/segments/segment.h"

namespace kvspan {
namespace {

constexpr std::int32_t kCodedTile = BandsStore::kTileTokens;

}  // namespace

std::int32_t RebuildTable::parts() const noexcept {
  return code_->heads() * ((code_->key_dim() > 0 ? 1 : 0) + (code_->value_dim() > 0 ? 1 : 0));
}

std::int32_t RebuildTable::first_row(std::int32_t part) const noexcept {
  if (is_key(part)) return part * code_->key_dim();
  return code_->key_width() + (part - (code_->key_dim() > 0 ? code_->heads() : 0)) * code_->value_dim();
}

std::int32_t RebuildTable::most_dim() const noexcept {
  return std::max(code_->key_dim(), code_->value_dim());
}

void RebuildTable::prepare(const BandsCode& code) {
  code_ = &code;
  ranges_.clear();
  for (BandsCode::ScaleRange range : code.scale_ranges()) {
    if (range.rest) continue;
    ranges_.push_back(range);
    range.rest = true;
    if (code.fine()) ranges_.insert(ranges_.end() - 1, range);
  }
  stride_ = query_stride(ranges_);
  mean_stride_ = code.anchor_block() > 0 ? code.anchor_block() : kStretchTokens;
  const auto width = static_cast<std::size_t>(code.width());
  const std::size_t bytes = (width + kBandsRowsAfter) * static_cast<std::size_t>(stride_);
  if (rounded_.bytes() < bytes) rounded_ = Buffer(bytes, MemoryKind::kFullRank, nullptr);
  const std::size_t numbers = width * static_cast<std::size_t>(kBandScales + 1 + mean_stride_) * sizeof(float);
  if (numbers_.bytes() < numbers) numbers_ = Buffer(numbers, MemoryKind::kFullRank, nullptr);
  rows_ = rounded_.as<std::int8_t>();
  scales_ = numbers_.as<float>();
  offsets_ = scales_ + width * kBandScales;
  means_ = offsets_ + width;
}

std::size_t RebuildTable::work_floats() const noexcept {
  const auto places = static_cast<std::size_t>(code_->places()), dim = static_cast<std::size_t>(most_dim());
  const std::size_t making = static_cast<std::size_t>(code_->row_stride());
  const std::size_t codes = (static_cast<std::size_t>(kStretchTokens) * places + kBandsBytesAfter + 3) / 4;
  const std::size_t rebuilding = floats_in_lines(codes) + kStretchTokens + dim * kStride + 3 * floats_in_lines(dim + 8);
  return std::max(floats_in_lines(making) + dim, rebuilding);
}

void RebuildTable::make(std::int32_t part, float* work) noexcept {
  const BandsAttentionKernels& kernels = bands_attention_kernels(cpu_level());
  const std::int32_t first = first_row(part), dim = dim_of(part), places = code_->places();
  const std::int32_t head = part % code_->heads();
  const BandsCode::Rows rows = is_key(part) ? code_->key_rows(head) : code_->value_rows(head);
  for (std::int32_t j = 0; j < dim; ++j) {
    const std::ptrdiff_t row = first + j;
    code_->widen({rows.numbers + static_cast<std::ptrdiff_t>(j) * code_->row_stride(), rows.scales + j}, 1,
                 code_->row_stride(), work);
    for (std::int32_t p = 0; p < places; ++p) work[p] *= code_->steps()[p];
    const float sum =
        round_by_ranges(kernels, ranges_, work, 1.0f, rows_ + row * stride_, scales_ + row * kBandScales);
    offsets_[row] = 0.5f * sum;  // codes stand for c + 1/2
  }
  make_means(part, work);
}

// The mean of anchored keys is turned from the anchor to a token's place in the block, that of others is the same
// everywhere; values come without it.
void RebuildTable::make_means(std::int32_t part, float* work) noexcept {
  const std::int32_t dim = dim_of(part), head = part % code_->heads(), block = code_->anchor_block();
  float* const to = means_ + static_cast<std::ptrdiff_t>(first_row(part)) * mean_stride_;
  if (!is_key(part)) {
    std::fill_n(to, static_cast<std::ptrdiff_t>(dim) * mean_stride_, 0.0f);
    return;
  }
  for (std::int32_t place = 0; place < mean_stride_; ++place) {
    std::copy_n(code_->key_mean(head), dim, work);
    if (block > 0) rope_offset(code_->rope(), place - code_->anchor_of(place), work);
    for (std::int32_t j = 0; j < dim; ++j) to[static_cast<std::ptrdiff_t>(j) * mean_stride_ + place] = work[j];
  }
}

std::int32_t RebuildTable::together(const BandsStore& store, std::int32_t tile, std::int32_t most) const noexcept {
  const std::int32_t position = store.first_position() + tile * kCodedTile;
  const std::int32_t left = (mean_stride_ - (code_->anchor_block() > 0 ? position % mean_stride_ : 0)) / kCodedTile;
  return std::min({most, kStretchTiles, left});
}

void RebuildTable::rebuild(const BandsStore& store, std::int32_t tile, std::int32_t tiles, std::int32_t row,
                           RebuiltSink& to, float* work) const noexcept {
  const BandsAttentionKernels& kernels = bands_attention_kernels(cpu_level());
  const std::int32_t places = code_->places(), position = store.first_position() + tile * kCodedTile;
  auto* const codes = reinterpret_cast<std::int8_t*>(work);
  float* const gains =
      work + floats_in_lines((static_cast<std::size_t>(kStretchTokens * places) + kBandsBytesAfter + 3) / 4);
  float* const numbers = gains + kStretchTokens;
  float* const token = numbers + static_cast<std::ptrdiff_t>(most_dim()) * kStride;
  float* const cosines = token + floats_in_lines(static_cast<std::size_t>(most_dim()) + 8);
  float* const sines = cosines + floats_in_lines(static_cast<std::size_t>(most_dim()) + 8);
  std::uint64_t escaped = 0;
  for (std::int32_t i = 0; i < tiles; ++i) {
    store.unpack(tile + i, codes + static_cast<std::ptrdiff_t>(i) * kCodedTile * places);
    detail::load_gains(store, tile + i, gains + i * kCodedTile);
    escaped |= std::uint64_t{store.escaped(tile + i)} << i * kCodedTile;
  }
  const Rope& rope = code_->rope();
  const std::int32_t block = code_->anchor_block();
  if (block > 0) rope_turn(rope, code_->anchor_of(position), rope.magnitude, cosines, sines);
  for (std::int32_t part = 0; part < parts(); ++part) {
    const std::ptrdiff_t first = first_row(part);
    const std::int32_t dim = dim_of(part), padded = padded_dim(dim), head = part % code_->heads();
    const BandsQueries rows{rows_ + first * stride_, stride_, scales_ + first * kBandScales,
                            offsets_ + first, dim};
    {
      const BandsProducts products(kernels, dim);
      kernels.score(codes, tiles, ranges_, code_->layout().narrow_quads(), rows,
                    {gains, means_ + first * mean_stride_ + (block > 0 ? position % block : 0), mean_stride_, numbers,
                     kStride});
    }
    std::fill(token + dim, token + padded, 0.0f);
    std::int32_t next = row;
    for (std::int32_t t = 0; t < tiles * kCodedTile; ++t) {
      if ((escaped >> t & 1) != 0) continue;
      for (std::int32_t j = 0; j < dim; ++j) token[j] = numbers[static_cast<std::ptrdiff_t>(j) * kStride + t];
      if (!is_key(part)) {
        to.put_value(head, next++, token);
        continue;
      }
      if (code_->before_rope()) rope_turn(rope, position + t, rope.magnitude, cosines, sines);
      if (block > 0 || code_->before_rope()) apply_turn(rope, cosines, sines, token);
      to.put_key(head, next++, token);
    }
  }
}

}  // namespace kvspan
