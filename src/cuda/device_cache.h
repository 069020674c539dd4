// SPDX-License-Identifier: Apache-2.0
// What is behind kvspan/cuda.h.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cuda/attend_plan.h"
#include "cuda/bands/device_recipe.h"
#include "cuda/bands/layer_tables.h"
#include "cuda/bands/rebuilder.h"
#include "cuda/kernels/step.h"
#include "cuda/sequences.h"
#include "kvspan/cuda.h"

namespace kvspan {

struct LayerTokens;  // method/layer_tokens.h
class MethodCache;   // method/method_cache.h

class DeviceCache::Impl {
 public:
  static Result<std::unique_ptr<Impl>> create(const CacheShape& shape, cuda::DeviceRecipe recipe,
                                              const DeviceOptions& options);

  const CacheShape& shape() const noexcept { return shape_; }
  const std::string& recipe() const noexcept { return recipe_.text; }
  cuda::Sequences& sequences() noexcept { return sequences_; }
  const cuda::Sequences& sequences() const noexcept { return sequences_; }

  Status append(int layer, std::span<const DeviceStep> steps, const DeviceRows& keys,
                const DeviceRows& values, cudaStream_t stream);
  Status attend(int layer, std::span<const DeviceStep> steps, const DeviceRows& queries,
                const DeviceOut& out, cudaStream_t stream);
  Status rebuild(int layer, std::int32_t sequence, std::int32_t first, const DeviceOut& keys,
                 const DeviceOut& values, cudaStream_t stream);
  Status settle(int layer, std::span<const DeviceStep> steps, cudaStream_t stream);
  Status truncate(std::int32_t sequence, std::int32_t n);
  Result<std::int32_t> least_tokens(std::int32_t sequence) const;
  Result<CacheBytes> bytes(std::int32_t sequence) const;
  std::size_t shared_bytes() const noexcept;
  std::size_t used_bytes() const noexcept;
  Result<std::vector<std::byte>> read_tiles(std::int32_t sequence, int layer, int group) const;

  // A sequence as a cache of the host, and a new one that holds what such a cache does
  // (cuda/device_state.cc). They wait for the stream.
  const std::shared_ptr<const Prepared>& prepared() const noexcept { return recipe_.prepared; }
  Result<std::unique_ptr<MethodCache>> to_host(std::int32_t sequence, cudaStream_t stream) const;
  Result<std::int32_t> from_host(const MethodCache& host, cudaStream_t stream);

 private:
  friend class RecordedStep;
  Status place_layers(const DeviceOptions& options);
  Status make_working_memory(const DeviceOptions& options);
  Status check_layer(int layer) const;
  std::byte* code_page_at(const cuda::Sequence& s, std::size_t layer, std::size_t group,
                          std::int32_t page) const noexcept;
  std::byte* row_page_at(const cuda::Sequence& s, std::size_t layer,
                         std::int32_t page) const noexcept;
  LayerTokens room_for(const cuda::Sequence& s, std::size_t layer) const;
  Result<LayerTokens> read_layer(const cuda::Sequence& s, std::size_t layer,
                                 cudaStream_t stream) const;
  Status check_tokens(const LayerTokens& tokens, std::size_t layer) const;
  Status write_layer(const LayerTokens& tokens, std::size_t layer, cuda::Sequence& s,
                     cudaStream_t stream);
  // The cache's sequences of the steps, each once; fails on others.
  Result<std::vector<cuda::Sequence*>> find(std::span<const DeviceStep> steps, bool need_tokens);
  // Rows of a layer with codes that are no longer recent.
  Status encode(std::size_t layer, std::span<cuda::Sequence* const> found, cudaStream_t stream);

  CacheShape shape_;
  cuda::DeviceRecipe recipe_;
  int processors_ = 1;
  std::int64_t launch_tokens_ = 0;
  std::unique_ptr<cuda::RopeTables> ropes_;
  std::vector<cuda::LayerTables> layers_;
  std::vector<cuda::PlanLimits> limits_;  // by layer
  cuda::Sequences sequences_;
  cuda::DeviceMemory pool_memory_, table_memory_, working_memory_;
  cuda::EncodeScratch encode_scratch_;  // of the working memory
  cuda::Rebuilder rebuilder_;
};

}  // namespace kvspan
