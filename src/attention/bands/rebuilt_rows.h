// SPDX-License-Identifier: Apache-2.0
// Rows of tokens of bands as attention sees them, values without their mean, by integer products: what many queries
// read is cheaper to rebuild once than to meet in coefficient space. Rows of B times the steps take the place of queries
// in BandsAttentionKernels::score, so that a number of a row is one of its "scores": gain * (B c^) + mean.
// Error of a number: half the scale of its row of B for each component, times what the codes stand for, and the
// rounding of rows; a tenth of what quantization has cost, and less. Rows of B of a fine code have a second digit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "attention/bands/kernels/bands_kernels.h"
#include "attention/bands/rebuilt_sink.h"
#include "base/memory.h"
#include "cache/bands/bands_store.h"

namespace kvspan {

// B of one code, rounded, and its means.
class RebuildTable {
 public:
  // Tokens that are rebuilt at once: tiles of one anchor.
  static constexpr std::int32_t kStretchTokens = 64, kStretchTiles = kStretchTokens / BandsStore::kTileTokens;

  // Room for a code, which must live as long; by one thread. Throws std::bad_alloc.
  void prepare(const BandsCode& code);
  // Parts of a code that can be made, and then rebuilt, side by side: its heads of keys, then those of values.
  std::int32_t parts() const noexcept;
  void make(std::int32_t part, float* work) noexcept;

  // Floats that make and rebuild work in.
  std::size_t work_floats() const noexcept;
  // How many of the tiles from `tile` on, `most` at most, one call may rebuild.
  std::int32_t together(const BandsStore& store, std::int32_t tile, std::int32_t most) const noexcept;
  // Tokens of `tiles` tiles that are not escaped become rows `row` and following of keys, values or both.
  void rebuild(const BandsStore& store, std::int32_t tile, std::int32_t tiles, std::int32_t row, RebuiltSink& rows,
               float* work) const noexcept;
  std::size_t bytes() const noexcept { return rounded_.bytes() + numbers_.bytes(); }

 private:
  static constexpr std::int32_t kStride = kStretchTokens + 16;  // of rows of numbers

  bool is_key(std::int32_t part) const noexcept { return code_->key_dim() > 0 && part < code_->heads(); }
  std::int32_t dim_of(std::int32_t part) const noexcept { return is_key(part) ? code_->key_dim() : code_->value_dim(); }
  std::int32_t first_row(std::int32_t part) const noexcept;
  std::int32_t most_dim() const noexcept;
  void make_means(std::int32_t part, float* work) noexcept;

  const BandsCode* code_ = nullptr;
  std::vector<BandsCode::ScaleRange> ranges_;  // of rows of B
  std::int32_t stride_ = 0, mean_stride_ = 0;
  Buffer rounded_, numbers_;
  std::int8_t* rows_ = nullptr;  // [width][stride_]: rows of B as queries are rounded
  // [width][kBandScales], [width], [width][mean_stride_] by place in a block
  float *scales_ = nullptr, *offsets_ = nullptr, *means_ = nullptr;
};

}  // namespace kvspan
