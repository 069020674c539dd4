// SPDX-License-Identifier: Apache-2.0
#include "cuda/bands/rebuilder.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "base/fail.h"

namespace kvspan::cuda {
namespace {

std::int32_t whole_tiles(std::int32_t tokens) {
  return (tokens + kTileTokens - 1) / kTileTokens * kTileTokens;
}

// Numbers of a group's token: keys, then values.
std::int32_t group_width(const EncodeCall& layer) {
  return layer.group_heads * (layer.key_dim + layer.value_dim);
}

// Products [groups][tokens][D] of levels [groups][tokens][places] and the synthesis [D][places],
// which cuBLAS sees as matrices that rise by columns.
Status multiply(cublasHandle_t blas, const LayerTables& tables, const RebuildTiles& tiles) {
  const EncodeCall& layer = tables.encode;
  const std::int32_t places = layer.chunks * kChunkPlaces, width = group_width(layer);
  const float one = 1.0f, zero = 0.0f;
  return check_blas(
      cublasGemmStridedBatchedEx(blas, CUBLAS_OP_T, CUBLAS_OP_N, width, tiles.tokens, places, &one,
                                 tables.synthesis, CUDA_R_16F, places, std::int64_t{width} * places,
                                 tiles.levels, CUDA_R_16F, places,
                                 std::int64_t{tiles.tokens} * places, &zero, tiles.products,
                                 CUDA_R_32F, width, std::int64_t{tiles.tokens} * width,
                                 layer.groups, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
      "making rows of codes");
}

// Tokens that are multiplied at once for so many that are wanted: of few kinds, since each has a
// kernel of its own.
constexpr std::int32_t kLeastAtOnce = 512;
std::int32_t made_at_once(std::int32_t wanted, std::int32_t most) {
  std::int32_t tokens = std::min(kLeastAtOnce, most);
  while (tokens < std::min(wanted, most)) tokens *= 2;
  return std::min(tokens, most);
}

struct Sizes {
  std::size_t levels = 0, products = 0;  // bytes
  Sizes(std::span<const LayerTables> layers, std::int32_t tokens) {
    for (const LayerTables& layer : layers) {
      const auto all = static_cast<std::size_t>(whole_tiles(std::max(0, tokens))) *
                       static_cast<std::size_t>(layer.encode.groups);
      const auto places = static_cast<std::size_t>(layer.encode.chunks * kChunkPlaces);
      levels = std::max(levels, all * places * sizeof(__half));
      products = std::max(
          products, all * static_cast<std::size_t>(group_width(layer.encode)) * sizeof(float));
    }
  }
};

}  // namespace

std::size_t Rebuilder::bytes_for(std::span<const LayerTables> layers, std::int32_t tokens) {
  const Sizes sizes(layers, tokens);
  return sizes.levels + sizes.products;
}

Status Rebuilder::create(std::span<const LayerTables> layers, std::int32_t tokens,
                         std::byte* memory) {
  if (tokens <= 0) return {};
  tokens_ = whole_tiles(tokens);
  levels_ = reinterpret_cast<__half*>(memory);
  products_ = reinterpret_cast<float*>(memory + Sizes(layers, tokens).levels);
  KVSPAN_CHECK_OK(blas_.open());
  // cuBLAS loads a kernel when it first needs it, and the device waits for that: now rather than in
  // a prompt.
  KVSPAN_TRY(cublasHandle_t blas, blas_.on(nullptr));
  std::set<std::tuple<std::int32_t, std::int32_t, std::int32_t>> shapes;
  for (const LayerTables& layer : layers) {
    if (!layer.coded() ||
        !shapes.insert({layer.encode.groups, layer.encode.chunks, group_width(layer.encode)})
             .second) {
      continue;
    }
    for (std::int32_t some = 1; some <= tokens_; some = 2 * made_at_once(some, tokens_)) {
      RebuildTiles tiles;
      tiles.levels = levels_;
      tiles.products = products_;
      tiles.tokens = made_at_once(some, tokens_);
      KVSPAN_CHECK_OK(multiply(blas, layer, tiles));
    }
  }
  return {};
}

Status Rebuilder::rebuild(const LayerTables& layer, const Held& held, const RebuildRows& rows,
                          cudaStream_t stream) const {
  if (tokens_ == 0) {
    return fail(ErrorCode::kUnsupported, "the cache was made without rebuild_tokens");
  }
  const bool coded = held.coded > held.sink;
  const std::int32_t sink = coded ? held.sink : 0, end = coded ? held.coded : 0;
  const auto keep = [&](std::int32_t first, std::int32_t last) {
    return check(launch_kept_rows(layer.append, held.row_pages, std::max(first, rows.first), last,
                                  rows, stream),
                 "copying rows");
  };
  KVSPAN_CHECK_OK(keep(0, sink));
  KVSPAN_CHECK_OK(keep(end, held.tokens));
  RebuildTiles tiles;
  tiles.code_pages = held.code_pages;
  tiles.first = std::max(rows.first, sink);
  tiles.last = end;
  if (tiles.first >= tiles.last) return {};
  tiles.levels = levels_;
  tiles.products = products_;
  tiles.scales = layer.synthesis_scales;
  KVSPAN_TRY(cublasHandle_t blas, blas_.on(stream));
  tiles.begin = tiles.first / kTileTokens * kTileTokens;
  for (; tiles.begin < end; tiles.begin += tiles.held) {
    tiles.held = std::min(tokens_, whole_tiles(end) - tiles.begin);
    tiles.tokens = made_at_once(tiles.held, tokens_);
    KVSPAN_CHECK_OK(check(launch_levels(layer.encode, tiles, stream), "taking codes apart"));
    KVSPAN_CHECK_OK(multiply(blas, layer, tiles));
    KVSPAN_CHECK_OK(check(launch_coded_rows(layer.encode, tiles, rows, stream), "making rows"));
  }
  return {};
}

}  // namespace kvspan::cuda
