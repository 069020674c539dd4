// SPDX-License-Identifier: Apache-2.0
#include "llama/block_offsets.h"

#include <ggml-cpu.h>

#include <algorithm>
#include <array>
#include <cstring>

namespace kvspan {
namespace {

// ggml's blocks as they lie in files.
struct Q41 {
  ggml_fp16_t scale, least;
  std::array<std::uint8_t, 16> codes;
};
struct Q40 {
  ggml_fp16_t scale;
  std::array<std::uint8_t, 16> codes;
};
static_assert(sizeof(Q41) == 20 && sizeof(Q40) == 18);

constexpr std::int64_t kBlock = BlockOffsets::kBlock, kTile = BlockOffsets::kTile;
constexpr std::int64_t kColumns = 4;      // that meet a tile of rows together
constexpr std::int64_t kSumColumns = 32;  // whose sums are held
constexpr std::int64_t kSumBlocks = 64;

// The compiler's own vectors: these few products need no instruction set of their own.
using Lanes = float __attribute__((vector_size(16)));

Lanes load(const float* from) {
  Lanes x;
  std::memcpy(&x, from, sizeof x);
  return x;
}

float sum_of_block(const float* x) {
  Lanes sum = load(x);
  for (int i = 4; i < kBlock; i += 4) sum += load(x + i);
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

// out [C][16] += sums [C][blocks] times offsets [blocks][16].
template <int C>
void add_tile(const float* offsets, std::int64_t blocks, const float* sums, float* out,
              std::int64_t out_stride) {
  Lanes total[C][4];
  for (int c = 0; c < C; ++c) {
    for (int k = 0; k < 4; ++k) total[c][k] = load(out + c * out_stride + 4 * k);
  }
  for (std::int64_t b = 0; b < blocks; ++b, offsets += kTile) {
    for (int k = 0; k < 4; ++k) {
      const Lanes four = load(offsets + 4 * k);
      for (int c = 0; c < C; ++c) total[c][k] += four * sums[c * kSumBlocks + b];
    }
  }
  for (int c = 0; c < C; ++c) std::memcpy(out + c * out_stride, total[c], sizeof total[c]);
}

}  // namespace

bool BlockOffsets::fits(const ggml_tensor* matrix) {
  return matrix->type == GGML_TYPE_Q4_1 && matrix->ne[1] % kTile == 0 && matrix->ne[2] == 1 &&
         matrix->ne[3] == 1;
}

BlockOffsets::BlockOffsets(const ggml_tensor* matrix, std::byte* rest)
    : tiles_(matrix->ne[1] / kTile),
      blocks_(matrix->ne[0] / kBlock),
      offsets_(static_cast<std::size_t>(tiles_ * kTile * blocks_)) {
  const auto* from = static_cast<const std::byte*>(matrix->data);
  for (std::int64_t row = 0; row < tiles_ * kTile; ++row) {
    ggml_fp16_t* to = offsets_.data() + (row / kTile * blocks_) * kTile + row % kTile;
    for (std::int64_t b = 0; b < blocks_; ++b, to += kTile) {
      Q41 block;
      std::memcpy(&block, from, sizeof block);
      const Q40 kept{block.scale, block.codes};
      std::memcpy(rest, &kept, sizeof kept);
      *to =
          ggml_fp32_to_fp16(ggml_fp16_to_fp32(block.least) + 8.0f * ggml_fp16_to_fp32(block.scale));
      from += sizeof block;
      rest += sizeof kept;
    }
  }
}

void BlockOffsets::add_rows(const float* x, std::int64_t x_stride, std::int64_t columns, int part,
                            int parts, float* out, std::int64_t out_stride) const {
  const std::int64_t first = tiles_ * part / parts, last = tiles_ * (part + 1) / parts;
  float sums[kSumColumns * kSumBlocks], tile[kSumBlocks * kTile];
  for (std::int64_t column = 0; column < columns; column += kSumColumns) {
    const std::int64_t n = std::min(kSumColumns, columns - column);
    for (std::int64_t block = 0; block < blocks_; block += kSumBlocks) {
      const std::int64_t blocks = std::min(kSumBlocks, blocks_ - block);
      for (std::int64_t c = 0; c < n; ++c) {
        const float* from = x + (column + c) * x_stride + block * kBlock;
        for (std::int64_t b = 0; b < blocks; ++b) {
          sums[c * kSumBlocks + b] = sum_of_block(from + b * kBlock);
        }
      }
      for (std::int64_t t = first; t < last; ++t) {
        ggml_cpu_fp16_to_fp32(offsets_.data() + (t * blocks_ + block) * kTile, tile,
                              blocks * kTile);
        float* to = out + column * out_stride + t * kTile;
        std::int64_t c = 0;
        for (; c + kColumns <= n; c += kColumns) {
          add_tile<kColumns>(tile, blocks, sums + c * kSumBlocks, to + c * out_stride, out_stride);
        }
        for (; c < n; ++c) {
          add_tile<1>(tile, blocks, sums + c * kSumBlocks, to + c * out_stride, out_stride);
        }
      }
    }
  }
}

}  // namespace kvspan
