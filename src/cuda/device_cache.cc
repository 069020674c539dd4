// SPDX-License-Identifier: Apache-2.0
// Making a device cache: codes to the device, pages placed, working memory counted.
#include "cuda/device_cache.h"

#include <algorithm>

#include "base/fail.h"

namespace kvspan {

using cuda::AttendCall;
using cuda::DeviceMemory;
using cuda::LayerTables;

namespace {

// Bytes of all pages: as asked for, or as needed and there.
Result<std::size_t> budget_for(const DeviceOptions& options,
                               std::span<const cuda::PageNeed> needs) {
  std::size_t bytes = options.budget_bytes;
  if (bytes == 0) {
    std::size_t available = 0, total = 0;
    KVSPAN_CHECK_OK(cuda::check(cudaMemGetInfo(&available, &total), "asking for free memory"));
    bytes = std::min(cuda::pool_bytes_for(needs, cuda::best_block_bytes(needs)), available / 5 * 4);
  }
  return bytes / cuda::kPageUnit * cuda::kPageUnit;
}

}  // namespace

Result<std::unique_ptr<DeviceCache::Impl>> DeviceCache::Impl::create(const CacheShape& shape,
                                                                     cuda::DeviceRecipe recipe,
                                                                     const DeviceOptions& options) {
  if (options.max_sequences < 1 || options.spare_sequences < 0 || options.max_tokens < 1 ||
      options.max_tokens > 1 << 24) {
    return fail(ErrorCode::kInvalidArgument,
                "max_sequences {} (and {} to spare) and max_tokens {}; allowed: 1 or more (0 or "
                "more), up to {} tokens",
                options.max_sequences, options.spare_sequences, options.max_tokens, 1 << 24);
  }
  auto impl = std::make_unique<Impl>();
  impl->shape_ = shape;
  impl->recipe_ = std::move(recipe);
  int device = 0;
  KVSPAN_CHECK_OK(cuda::check(cudaGetDevice(&device), "finding a device"));
  KVSPAN_CHECK_OK(cuda::check(
      cudaDeviceGetAttribute(&impl->processors_, cudaDevAttrMultiProcessorCount, device),
      "asking the device"));
  impl->ropes_ = std::make_unique<cuda::RopeTables>(options.max_tokens);
  for (std::size_t i = 0; i < shape.layers.size(); ++i) {
    Result<LayerTables> tables =
        LayerTables::create(shape.layers[i], impl->recipe_.codes[i], *impl->ropes_,
                            options.rebuild_tokens > 0);
    if (!tables) return fail(tables.error().code, "layer {}: {}", i, tables.error().message);
    impl->layers_.push_back(std::move(*tables));
  }
  KVSPAN_CHECK_OK(impl->place_layers(options));
  KVSPAN_CHECK_OK(impl->make_working_memory(options));
  return impl;
}

Status DeviceCache::Impl::place_layers(const DeviceOptions& options) {
  std::vector<cuda::LayerPages> pages;
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    pages.push_back({shape_.layers[l].window, layers_[l].coded(), layers_[l].code_page_bytes(),
                     layers_[l].row_page_halves() * sizeof(__half)});
  }
  std::vector<cuda::PageClass> classes = cuda::page_classes(pages, options.max_tokens);
  const cuda::SequenceLimits limits{
      options.max_sequences + options.spare_sequences, options.max_tokens,
      {recipe_.sink, recipe_.recent}};
  const std::vector<cuda::PageNeed> needs =
      cuda::page_needs(classes, limits.ends, limits.tokens, options.max_sequences);
  KVSPAN_TRY(const std::size_t budget, budget_for(options, needs));
  KVSPAN_TRY(pool_memory_, DeviceMemory::create(budget));
  KVSPAN_TRY(table_memory_,
             DeviceMemory::create(cuda::Sequences::table_entries(limits, classes.size()) *
                                  sizeof(std::int32_t)));
  for (const cuda::PageClass& of : classes) {
    std::size_t code_bytes = 0, row_halves = 0;
    for (const std::size_t l : of.layers) {
      LayerTables& layer = layers_[l];
      layer.place(static_cast<std::int32_t>(code_bytes), static_cast<std::int64_t>(row_halves));
      KVSPAN_CHECK_OK(layer.upload_offsets());
      layer.attend.pages = layer.encode.pages = layer.append.pages = pool_memory_.as<std::byte>();
      code_bytes += layer.code_page_bytes();
      row_halves += layer.row_page_halves();
    }
  }
  std::vector<std::size_t> sizes;
  for (const cuda::PageNeed& need : needs) sizes.push_back(need.page_bytes);
  sequences_ = cuda::Sequences(
      limits, std::move(classes),
      cuda::PagePool(budget, cuda::best_block_bytes(needs, budget), std::move(sizes)),
      pool_memory_.as<std::byte>(), table_memory_.as<std::int32_t>());
  return {};
}

// Parts of full-rank rows of one launch, of layers that have but the ends of sequences so.
constexpr std::int64_t kCodedRowParts = 1024;
// Half tiles that are coded at once: those of a prompt's block.
constexpr std::int32_t kEncodeHalves = 32;

// All layers work in the same memory, one after the other, be it to attend, to code rows or to
// rebuild them.
Status DeviceCache::Impl::make_working_memory(const DeviceOptions& options) {
  launch_tokens_ = std::max<std::int64_t>(options.launch_tokens, options.max_tokens);
  struct Part {
    std::size_t bytes = 0;
    void need(std::size_t count, std::size_t size) {
      bytes = std::max(bytes, (count * size + 255) / 256 * 256);
    }
  };
  Part moved, folded, sums, states, row_sums, row_states;
  for (const LayerTables& layer : layers_) {
    const AttendCall& a = layer.attend;
    const cuda::AttendVariant* v = layer.variant;
    limits_.push_back(cuda::limits_for(
        launch_tokens_, a.anchor, processors_, v != nullptr ? layer.blocks_at_once : 1,
        v != nullptr ? v->tokens : cuda::kTileTokens, v != nullptr ? v->teams : 1));
    if (layer.coded())
      limits_.back().row_parts = std::min(limits_.back().row_parts, kCodedRowParts);
    const cuda::PlanLimits& l = limits_.back();
    const auto rows = static_cast<std::size_t>(a.padded_queries), groups = std::size_t(a.groups);
    const auto places = static_cast<std::size_t>(a.chunks) * cuda::kChunkPlaces;
    const auto anchors = std::size_t(l.anchors), means = std::size_t(l.means);
    moved.need(groups * anchors, std::size_t(a.moved_bytes()));
    folded.need(groups * means, std::size_t(a.folded_bytes()));
    sums.need(groups * std::size_t(l.parts) * rows * places, sizeof(__half));
    states.need(groups * std::size_t(l.parts) * rows, sizeof(float2));
    const std::size_t row_queries = std::size_t(l.row_parts) * std::size_t(a.query_heads);
    row_sums.need(row_queries * std::size_t(a.value_dim), sizeof(float));
    row_states.need(row_queries, sizeof(float2));
  }
  const Part* const parts[] = {&moved, &folded, &sums, &states, &row_sums, &row_states};
  std::size_t total = 0;
  std::byte* at[std::size(parts)];
  for (const Part* part : parts) total += part->bytes;
  for (const LayerTables& layer : layers_) {
    if (layer.coded()) {
      encode_scratch_.bytes =
          std::max(encode_scratch_.bytes, cuda::encode_scratch_bytes(layer.encode, kEncodeHalves));
    }
  }
  const std::size_t rebuilds = cuda::Rebuilder::bytes_for(layers_, options.rebuild_tokens);
  KVSPAN_TRY(working_memory_,
             DeviceMemory::create(std::max({total, encode_scratch_.bytes, rebuilds})));
  encode_scratch_.components = working_memory_.as<float>();
  KVSPAN_CHECK_OK(
      rebuilder_.create(layers_, options.rebuild_tokens, working_memory_.as<std::byte>()));
  total = 0;
  for (std::size_t i = 0; i < std::size(parts); ++i) {
    at[i] = working_memory_.as<std::byte>() + total;
    total += parts[i]->bytes;
  }
  for (LayerTables& layer : layers_) {
    AttendCall& a = layer.attend;
    a.moved = at[0];
    a.folded = at[1];
    a.part_means = reinterpret_cast<__half*>(at[2]);
    a.part_states = reinterpret_cast<float2*>(at[3]);
    a.row_sums = reinterpret_cast<float*>(at[4]);
    a.row_states = reinterpret_cast<float2*>(at[5]);
  }
  return {};
}

Result<CacheBytes> DeviceCache::Impl::bytes(std::int32_t sequence) const {
  KVSPAN_TRY(const cuda::Sequence* s, sequences_.find(sequence));
  CacheBytes bytes;
  bytes.full_rank = sequences_.bytes(cuda::PageKind::kRows, *s);
  bytes.coefficients = sequences_.bytes(cuda::PageKind::kCodes, *s);
  bytes.total = bytes.full_rank + bytes.coefficients;
  bytes.shared = shared_bytes();
  return bytes;
}

std::size_t DeviceCache::Impl::shared_bytes() const noexcept {
  std::size_t sum = ropes_->bytes() + working_memory_.bytes() + table_memory_.bytes();
  for (const LayerTables& layer : layers_) sum += layer.bytes();
  return sum;
}

std::size_t DeviceCache::Impl::used_bytes() const noexcept {
  return sequences_.pool().used_bytes();
}

Result<std::vector<std::byte>> DeviceCache::Impl::read_tiles(std::int32_t sequence, int layer,
                                                             int group) const {
  KVSPAN_CHECK_OK(check_layer(layer));
  KVSPAN_TRY(const cuda::Sequence* s, sequences_.find(sequence));
  const LayerTables& tables = layers_[static_cast<std::size_t>(layer)];
  if (group < 0 || group >= tables.attend.groups) {
    return fail(ErrorCode::kInvalidArgument, "group {}; the layer has {}", group,
                tables.attend.groups);
  }
  KVSPAN_CHECK_OK(cuda::check(cudaDeviceSynchronize(), "waiting for the device"));
  const auto tile = static_cast<std::size_t>(tables.tile_bytes(group));
  std::vector<std::byte> tiles;
  const std::int32_t coded = s->coded[static_cast<std::size_t>(layer)];
  for (std::int32_t first = 0; first < coded; first += cuda::kPageTokens) {
    const std::int32_t page =
        sequences_.page_of(cuda::PageKind::kCodes, *s, static_cast<std::size_t>(layer), first);
    const std::int32_t tokens = std::min<std::int32_t>(cuda::kPageTokens, coded - first);
    const std::size_t bytes =
        tile * static_cast<std::size_t>((tokens + cuda::kTileTokens - 1) / cuda::kTileTokens);
    tiles.resize(tiles.size() + bytes);
    if (page < 0) continue;
    KVSPAN_CHECK_OK(cuda::check(
        cudaMemcpy(tiles.data() + tiles.size() - bytes,
                   sequences_.memory_of(page) + tables.group_offset(group), bytes,
                   cudaMemcpyDeviceToHost),
        "reading codes"));
  }
  return tiles;
}

}  // namespace kvspan
