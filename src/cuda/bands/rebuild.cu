// SPDX-License-Identifier: Apache-2.0
// Rows of what a sequence holds, as attention sees them: k = m (Rot(t_a) g S l + Rot(t) mu) and
// v = g S l + m of a token with the gain g and levels l, where S is the synthesis with steps in it;
// S l is a product between the first two kernels. Full-rank rows are copied.
#include "cache/bands/anchored_key.h"
#include "cuda/kernels/rows.cuh"
#include "cuda/rebuild_call.h"

namespace kvspan::cuda {
namespace {

constexpr int kThreads = 256;

__device__ const std::byte* tile_at(const EncodeCall& layer, const RebuildTiles& tiles, int group,
                                    int position) {
  return layer.pages + layer.group_offsets[group] +
         std::int64_t{tiles.code_pages[position / kPageTokens]} * kPageUnit +
         static_cast<std::int64_t>(position % kPageTokens / kTileTokens) * layer.tile_bytes[group];
}

// A block for each tile, group and chunk; a thread for eight places of a token.
constexpr int kLevelPlaces = 8;
__global__ void __launch_bounds__(kThreads)
    levels_kernel(const __grid_constant__ EncodeCall layer,
                  const __grid_constant__ RebuildTiles tiles) {
  const int group = blockIdx.y, chunk = blockIdx.z;
  const int token = static_cast<int>(threadIdx.x) / (kChunkPlaces / kLevelPlaces);
  const int place = static_cast<int>(threadIdx.x) % (kChunkPlaces / kLevelPlaces) * kLevelPlaces;
  const int first = static_cast<int>(blockIdx.x) * kTileTokens, places = layer.chunks * kChunkPlaces;
  const int width = layer.chunk_widths[group * kMaxChunks + chunk];
  const auto* const words =
      reinterpret_cast<const std::uint32_t*>(tile_at(layer, tiles, group, tiles.begin + first)) +
      layer.chunk_offsets[group * kMaxChunks + chunk];
  const float middle = 0.5f * static_cast<float>((1 << width) - 1);
  const auto level = [&](int p) {
    const DigitField field = field_of(width, token, p);
    return static_cast<float>(words[field.word] >> field.shift & ((1u << width) - 1u)) - middle;
  };
  __half2 levels[kLevelPlaces / 2];
#pragma unroll
  for (int i = 0; i < kLevelPlaces; i += 2) {
    levels[i / 2] = __floats2half2_rn(level(place + i), level(place + i + 1));
  }
  static_assert(kTileTokens * kChunkPlaces == kThreads * kLevelPlaces && sizeof levels == sizeof(uint4));
  const std::int64_t row = static_cast<std::int64_t>(group) * tiles.tokens + first + token;
  *reinterpret_cast<uint4*>(tiles.levels + row * places + chunk * kChunkPlaces + place) =
      *reinterpret_cast<const uint4*>(levels);
}

// A warp for each token and head.
constexpr int kRowThreads = 128, kRowTokens = kRowThreads / 32;
static_assert(kTileTokens % kRowTokens == 0);
__global__ void __launch_bounds__(kRowThreads)
    coded_rows_kernel(const __grid_constant__ EncodeCall layer,
                      const __grid_constant__ RebuildTiles tiles,
                      const __grid_constant__ RebuildRows rows) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int token = static_cast<int>(blockIdx.x) * kRowTokens + warp, head = blockIdx.y;
  const int position = tiles.begin + token;
  if (position < tiles.first || position >= tiles.last) return;
  const int heads = layer.group_heads, group = head / heads, within = head % heads;
  const int key_dim = layer.key_dim, value_dim = layer.value_dim, keys = heads * key_dim;
  const int width = keys + heads * value_dim;
  const EncodeCall::Group& code = layer.group_table[group];
  float gain = 1.0f;
  if (code.has_gain) {
    const auto* const gains = reinterpret_cast<const std::int8_t*>(
        tile_at(layer, tiles, group, position) + layer.tile_bytes[group] - kTileTail);
    gain = exp2f(static_cast<float>(gains[gain_byte(position % kTileTokens)]) / 8.0f);
  }
  const float* const products =
      tiles.products + (static_cast<std::int64_t>(group) * tiles.tokens + token) * width;
  const float* const scales = tiles.scales + group * width;
  const auto number = [&](int j) { return products[j] * scales[j] * gain; };
  const std::int64_t row = position - rows.first;
  const std::int64_t k = row * rows.keys.token_stride + head * rows.keys.head_stride;
  const std::int64_t v = row * rows.values.token_stride + head * rows.values.head_stride;
  const int pairs = layer.rope_pairs, first = within * key_dim;
  const float* const mu = code.means + first;
  const int anchor = position / layer.anchor * layer.anchor + layer.anchor / 2;
  const float2* const turns = layer.turns + static_cast<std::int64_t>(anchor / kTurnStep) * pairs;
  const float2* const offsets =
      layer.offset_turns + static_cast<std::int64_t>(position % layer.anchor) * pairs;
  for (int j = lane; j < pairs; j += 32) {
    const PairPlace at = pair_place(j, pairs, layer.neighbours);
    const float2 key = anchored_key(float2{number(first + at.first), number(first + at.second)},
                                    float2{mu[at.first], mu[at.second]}, __ldg(offsets + j),
                                    __ldg(turns + j), layer.rope_magnitude);
    write_number(rows.keys.data, k + at.first, rows.keys.type, key.x);
    write_number(rows.keys.data, k + at.second, rows.keys.type, key.y);
  }
  for (int j = 2 * pairs + lane; j < key_dim; j += 32) {
    write_number(rows.keys.data, k + j, rows.keys.type, number(first + j) + mu[j]);
  }
  const int values = keys + within * value_dim;
  for (int j = lane; j < value_dim; j += 32) {
    write_number(rows.values.data, v + j, rows.values.type,
                 number(values + j) + code.means[values + j]);
  }
}

// A block for each position and head.
__global__ void __launch_bounds__(128)
    kept_rows_kernel(const __grid_constant__ AppendCall layer, const std::int32_t* row_pages,
                     std::int32_t begin, const __grid_constant__ RebuildRows rows) {
  const int position = begin + static_cast<int>(blockIdx.x), head = blockIdx.y;
  const __half* const page =
      reinterpret_cast<const __half*>(layer.pages) +
      row_page_at(row_pages[position / kRowPageTokens], layer.row_layer_halves, head, layer.key_dim,
                  layer.value_dim);
  const int slot = position % kRowPageTokens;
  const __half* const key = page + slot * layer.key_dim;
  const __half* const value = page + kRowPageTokens * layer.key_dim + slot * layer.value_dim;
  const std::int64_t row = position - rows.first;
  const std::int64_t k = row * rows.keys.token_stride + head * rows.keys.head_stride;
  const std::int64_t v = row * rows.values.token_stride + head * rows.values.head_stride;
  for (int i = threadIdx.x; i < layer.key_dim; i += 128) {
    write_number(rows.keys.data, k + i, rows.keys.type, __half2float(key[i]));
  }
  for (int i = threadIdx.x; i < layer.value_dim; i += 128) {
    write_number(rows.values.data, v + i, rows.values.type, __half2float(value[i]));
  }
}

unsigned grid(std::int32_t count) {
  return static_cast<unsigned>(count);
}

}  // namespace

cudaError_t launch_levels(const EncodeCall& layer, const RebuildTiles& tiles, cudaStream_t stream) {
  const dim3 blocks(grid(tiles.held / kTileTokens), grid(layer.groups), grid(layer.chunks));
  levels_kernel<<<blocks, kThreads, 0, stream>>>(layer, tiles);
  return cudaGetLastError();
}

cudaError_t launch_coded_rows(const EncodeCall& layer, const RebuildTiles& tiles,
                              const RebuildRows& rows, cudaStream_t stream) {
  const dim3 blocks(grid(tiles.held / kRowTokens), grid(layer.kv_heads));
  coded_rows_kernel<<<blocks, kRowThreads, 0, stream>>>(layer, tiles, rows);
  return cudaGetLastError();
}

cudaError_t launch_kept_rows(const AppendCall& layer, const std::int32_t* row_pages,
                             std::int32_t first, std::int32_t last, const RebuildRows& rows,
                             cudaStream_t stream) {
  if (first >= last) return cudaSuccess;
  const dim3 blocks(grid(last - first), grid(layer.kv_heads));
  kept_rows_kernel<<<blocks, 128, 0, stream>>>(layer, row_pages, first, rows);
  return cudaGetLastError();
}

}  // namespace kvspan::cuda
