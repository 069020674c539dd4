// SPDX-License-Identifier: Apache-2.0
// Scores of a few tiles in small steps, made while the tiles after them are read: processors that
// multiply tiles do so beside other work, and what was just written takes them a while to read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "attention/bands/kernels/bands_kernels.h"

namespace kvspan {

// For kernels that have score_part, while a BandsProducts lives; until finish() its thread makes no
// other products.
class ScoreSteps {
 public:
  ScoreSteps(const BandsAttentionKernels& kernels, std::span<const BandsCode::ScaleRange> ranges,
             const BandsQueries& queries, const BandsScores& to) noexcept
      : kernels_(kernels), ranges_(ranges), queries_(queries), to_(to) {}

  // Codes of the next tile, which stay until finish(). Where steps were too few for the one before,
  // they are made up for.
  void add(const std::int8_t* codes) noexcept {
    end_products();
    while (written_ + 1 < added_) write();
    codes_ = codes;
    range_ = 0;
    ++added_;
  }
  // A part of the last tile's products; then the scores of the one before it.
  void step() noexcept {
    if (range_ < ranges_.size()) {
      multiply();
    } else if (written_ + 1 < added_) {
      write();
    }
  }
  void finish() noexcept {
    end_products();
    while (written_ < added_) write();
  }

 private:
  void end_products() noexcept {
    while (range_ < ranges_.size()) multiply();
  }
  // 64 places of the last tile.
  void multiply() noexcept {
    const BandsCode::ScaleRange& range = ranges_[range_];
    const bool last = 64 * (part_ + 1) == query_bytes(range);
    const std::ptrdiff_t quad = range.first_quad + 16 * part_;
    kernels_.score_part(codes_ + 64 * quad, queries_.rounded + query_, queries_.stride, part_ == 0,
                        last ? sums_[added_ % 2][range_] : nullptr);
    query_ += 64;
    ++part_;
    if (!last) return;
    part_ = 0;
    if (++range_ == ranges_.size()) query_ = 0;
  }
  void write() noexcept {
    ++written_;
    kernels_.score_end(sums_[written_ % 2][0], ranges_.size(), queries_,
                       to_.from(16 * (written_ - 1)));
  }

  const BandsAttentionKernels& kernels_;
  std::span<const BandsCode::ScaleRange> ranges_;
  BandsQueries queries_;
  BandsScores to_;
  std::int32_t added_ = 0, written_ = 0;  // tiles
  const std::int8_t* codes_ = nullptr;
  std::size_t range_ = ranges_.size();     // of the last tile: whose turn it is
  std::int32_t part_ = 0, query_ = 0;  // of the range; of a row of queries, bytes
  // Of the last two tiles.
  alignas(64) std::int32_t sums_[2][kBandScales][kBandsPartRows * 16];
};

}  // namespace kvspan
