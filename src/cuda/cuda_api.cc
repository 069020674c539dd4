// SPDX-License-Identifier: Apache-2.0
// The functions of kvspan/cuda.h.
#include <algorithm>

#include "api/prepared_of.h"
#include "cuda/device_cache.h"
#include "method/method_cache.h"

namespace kvspan {
namespace {

cudaStream_t native(DeviceStream stream) {
  return static_cast<cudaStream_t>(stream);
}

}  // namespace

DeviceCache::DeviceCache(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
DeviceCache::~DeviceCache() = default;

Result<std::unique_ptr<DeviceCache>> DeviceCache::create(const CacheShape& shape,
                                                         std::string_view recipe,
                                                         const Calibration* calibration,
                                                         const DeviceOptions& options) {
  KVSPAN_TRY(auto on_device, cuda::device_recipe(shape, recipe, calibration));
  KVSPAN_TRY(std::unique_ptr<Impl> impl, Impl::create(shape, std::move(on_device), options));
  return std::unique_ptr<DeviceCache>(new DeviceCache(std::move(impl)));
}

Result<std::unique_ptr<DeviceCache>> DeviceCache::create(const CacheFactory& caches,
                                                         const DeviceOptions& options) {
  KVSPAN_TRY(auto on_device, cuda::device_recipe(prepared_of(caches)));
  const CacheShape& shape = on_device.prepared->shape;
  KVSPAN_TRY(std::unique_ptr<Impl> impl, Impl::create(shape, std::move(on_device), options));
  return std::unique_ptr<DeviceCache>(new DeviceCache(std::move(impl)));
}

const CacheShape& DeviceCache::shape() const noexcept {
  return impl_->shape();
}
const std::string& DeviceCache::recipe() const noexcept {
  return impl_->recipe();
}

Result<std::int32_t> DeviceCache::add() {
  return impl_->sequences().add();
}

Result<std::int32_t> DeviceCache::fork(std::int32_t sequence, DeviceStream stream) {
  KVSPAN_TRY(const std::int32_t made, impl_->sequences().fork(sequence));
  KVSPAN_CHECK_OK(impl_->sequences().flush(native(stream)));
  return made;
}

Status DeviceCache::remove(std::int32_t sequence) {
  KVSPAN_TRY(cuda::Sequence * found, impl_->sequences().find(sequence));
  impl_->sequences().remove(*found);
  return {};
}

Result<std::int32_t> DeviceCache::tokens(std::int32_t sequence) const {
  KVSPAN_TRY(const cuda::Sequence* found, std::as_const(*impl_).sequences().find(sequence));
  return *std::min_element(found->tokens.begin(), found->tokens.end());
}

Status DeviceCache::append(int layer, std::span<const DeviceStep> steps, const DeviceRows& keys,
                           const DeviceRows& values, DeviceStream stream) {
  return impl_->append(layer, steps, keys, values, native(stream));
}

Status DeviceCache::attend(int layer, std::span<const DeviceStep> steps, const DeviceRows& queries,
                           const DeviceOut& out, DeviceStream stream) {
  return impl_->attend(layer, steps, queries, out, native(stream));
}

Status DeviceCache::rebuild(int layer, std::int32_t sequence, std::int32_t first,
                            const DeviceOut& keys, const DeviceOut& values, DeviceStream stream) {
  return impl_->rebuild(layer, sequence, first, keys, values, native(stream));
}

Status DeviceCache::settle(int layer, std::span<const DeviceStep> steps, DeviceStream stream) {
  return impl_->settle(layer, steps, native(stream));
}

Status DeviceCache::truncate(std::int32_t sequence, std::int32_t n) {
  return impl_->truncate(sequence, n);
}

Result<std::int32_t> DeviceCache::least_tokens(std::int32_t sequence) const {
  return impl_->least_tokens(sequence);
}

Status DeviceCache::save(std::int32_t sequence, const ByteSink& sink, DeviceStream stream) const {
  KVSPAN_TRY(const auto host, impl_->to_host(sequence, native(stream)));
  return host->save(sink);
}

Result<std::int32_t> DeviceCache::load(std::span<const std::byte> bytes, DeviceStream stream) {
  KVSPAN_TRY(const auto host, MethodCache::load(impl_->prepared(), bytes));
  return impl_->from_host(*host, native(stream));
}

Result<CacheBytes> DeviceCache::bytes(std::int32_t sequence) const {
  return impl_->bytes(sequence);
}

std::size_t DeviceCache::shared_bytes() const noexcept {
  return impl_->shared_bytes();
}

std::size_t DeviceCache::used_bytes() const noexcept {
  return impl_->used_bytes();
}

Result<std::vector<std::byte>> DeviceCache::read_tiles(std::int32_t sequence, int layer,
                                                       int group) const {
  return impl_->read_tiles(sequence, layer, group);
}

}  // namespace kvspan
