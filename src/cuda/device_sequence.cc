// SPDX-License-Identifier: Apache-2.0
#include "cuda/device_sequence.h"

#include <algorithm>
#include <limits>
#include <mutex>
#include <new>
#include <vector>

#include "base/copy_status.h"
#include "base/fail.h"
#include "cuda/device_cache.h"
#include "method/check_call.h"

namespace kvspan {

// The device cache, the stream of its calls, and memory by which rows of the host go there and back.
class DeviceHome::Impl {
 public:
  ~Impl() {
    cache.reset();
    if (own_stream) cudaStreamDestroy(stream);
  }
  // Device memory for so many numbers, whose content is nobody's.
  Result<float*> staged(int place, std::size_t numbers);
  Status wait() { return cuda::check(cudaStreamSynchronize(stream), "waiting for the device"); }
  Result<DeviceRows> send(int place, const TensorView<const float, 3>& rows);
  Status fetch(int place, const TensorView<float, 3>& rows);

  cudaStream_t stream = nullptr;
  bool own_stream = false;
  std::unique_ptr<DeviceCache> cache;
  std::mutex busy;

 private:
  cuda::DeviceMemory memory_[2];
  std::vector<float> dense_;
};

Result<float*> DeviceHome::Impl::staged(int place, std::size_t numbers) {
  cuda::DeviceMemory& memory = memory_[place];
  if (memory.bytes() < numbers * sizeof(float)) {
    KVSPAN_CHECK_OK(wait());
    memory = {};
    KVSPAN_TRY(memory, cuda::DeviceMemory::create(numbers * sizeof(float)));
  }
  return memory.as<float>();
}

Result<DeviceRows> DeviceHome::Impl::send(int place, const TensorView<const float, 3>& rows) {
  const std::size_t dim = rows.shape[2];
  dense_.resize(rows.shape[0] * rows.shape[1] * dim);
  for (std::size_t t = 0, at = 0; t < rows.shape[0]; ++t) {
    for (std::size_t h = 0; h < rows.shape[1]; ++h, at += dim) {
      std::copy_n(rows.row(t, h), dim, dense_.data() + at);
    }
  }
  KVSPAN_TRY(float* const to, staged(place, dense_.size()));
  KVSPAN_CHECK_OK(cuda::check(cudaMemcpyAsync(to, dense_.data(), dense_.size() * sizeof(float),
                                              cudaMemcpyHostToDevice, stream),
                              "copying rows to the device"));
  KVSPAN_CHECK_OK(wait());  // the next rows use the same memory
  return DeviceRows{to, DeviceNumber::kF32};
}

Status DeviceHome::Impl::fetch(int place, const TensorView<float, 3>& rows) {
  const std::size_t dim = rows.shape[2];
  dense_.resize(rows.shape[0] * rows.shape[1] * dim);
  KVSPAN_CHECK_OK(cuda::check(
      cudaMemcpyAsync(dense_.data(), memory_[place].as<float>(), dense_.size() * sizeof(float),
                      cudaMemcpyDeviceToHost, stream),
      "copying results from the device"));
  KVSPAN_CHECK_OK(wait());
  for (std::size_t t = 0, at = 0; t < rows.shape[0]; ++t) {
    for (std::size_t h = 0; h < rows.shape[1]; ++h, at += dim) {
      std::copy_n(dense_.data() + at, dim, rows.row(t, h));
    }
  }
  return {};
}

DeviceHome::DeviceHome(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
DeviceHome::~DeviceHome() = default;

Result<std::shared_ptr<DeviceHome>> DeviceHome::create(const CacheFactory& caches,
                                                       const DeviceOptions& options,
                                                       DeviceStream stream) {
  auto impl = std::make_unique<Impl>();
  KVSPAN_TRY(impl->cache, DeviceCache::create(caches, options));
  impl->stream = static_cast<cudaStream_t>(stream);
  if (stream == nullptr) {
    KVSPAN_CHECK_OK(cuda::check(cudaStreamCreateWithFlags(&impl->stream, cudaStreamNonBlocking),
                                "making a stream"));
    impl->own_stream = true;
  }
  // Tables were copied and memory cleared on the default stream.
  KVSPAN_CHECK_OK(cuda::check(cudaDeviceSynchronize(), "waiting for the device"));
  return std::shared_ptr<DeviceHome>(new DeviceHome(std::move(impl)));
}

std::unique_ptr<KvCache> DeviceHome::make() {
  return std::make_unique<DeviceSequence>(shared_from_this());
}
std::size_t DeviceHome::shared_bytes() const noexcept {
  return impl_->cache->shared_bytes();
}
Result<std::unique_ptr<KvCache>> DeviceHome::take(const KvCache& host) {
  const auto* cache = dynamic_cast<const MethodCache*>(&host);
  if (cache == nullptr) {
    return fail(ErrorCode::kInvalidArgument, "a cache of {} that is not in the host's memory",
                host.recipe());
  }
  const std::lock_guard lock(impl_->busy);
  KVSPAN_TRY(const std::int32_t number, impl_->cache->impl_->from_host(*cache, impl_->stream));
  return std::unique_ptr<KvCache>(std::make_unique<DeviceSequence>(shared_from_this(), number));
}
DeviceCache& DeviceHome::device() noexcept {
  return *impl_->cache;
}
DeviceStream DeviceHome::stream() const noexcept {
  return impl_->stream;
}
std::unique_lock<std::mutex> DeviceHome::lock() {
  return std::unique_lock(impl_->busy);
}

std::shared_ptr<DeviceHome> DeviceHome::of(const KvCache& cache) noexcept {
  const auto* sequence = dynamic_cast<const DeviceSequence*>(&cache);
  return sequence != nullptr ? sequence->home() : nullptr;
}

Result<std::int32_t> DeviceHome::sequence_of(KvCache& cache) {
  auto* sequence = dynamic_cast<DeviceSequence*>(&cache);
  if (sequence == nullptr) {
    return fail(ErrorCode::kInvalidArgument, "a cache of {} in the host's memory", cache.recipe());
  }
  return sequence->number();
}

DeviceSequence::~DeviceSequence() {
  DeviceSequence::clear();
}

const CacheShape& DeviceSequence::shape() const noexcept {
  return home_->device().shape();
}
std::string DeviceSequence::recipe() const {
  return home_->device().recipe();
}

std::int32_t DeviceSequence::tokens() const noexcept {
  const auto lock = home_->lock();
  return number_ < 0 ? 0 : *home_->device().tokens(number_);
}

Result<std::int32_t> DeviceSequence::number() {
  const auto lock = home_->lock();
  return own_number();
}

Result<std::int32_t> DeviceSequence::own_number() {
  if (number_ < 0) {
    KVSPAN_TRY(number_, home_->device().add());
  }
  return number_;
}

// The position behind those that the layer has had.
std::int32_t DeviceSequence::next(int layer) const {
  if (number_ < 0) return 0;
  const cuda::Sequence* sequence = *home_->impl_->cache->impl_->sequences().find(number_);
  return sequence->tokens[static_cast<std::size_t>(layer)];
}

template <class Deed>
Status DeviceSequence::by_leader(Team& team, Deed deed) {
  team.barrier();
  if (team.leader()) {
    const auto lock = home_->lock();
    // An exception must not leave the leader while the others wait for it at the barrier.
    try {
      outcome_ = deed(*home_->impl_);
    } catch (const std::bad_alloc&) {
      outcome_ = fail(ErrorCode::kOutOfBudget, "no memory to copy rows to the device or back");
    }
  }
  team.barrier();
  Status outcome = copy_of(outcome_);
  team.barrier();  // keeps the outcome in place until everybody has read it
  return outcome;
}

Status DeviceSequence::append(int layer, const KvRows& rows, Team& team) {
  return by_leader(team, [&](DeviceHome::Impl& home) -> Status {
    KVSPAN_CHECK_OK(check_layer(shape(), layer));
    KVSPAN_CHECK_OK(check_rows(shape().layers[static_cast<std::size_t>(layer)], layer, rows));
    KVSPAN_CHECK_OK(check_next_positions(layer, rows.positions, next(layer)));
    KVSPAN_CHECK_OK(check_numbers("keys", layer, rows.keys, kF16Limit));
    KVSPAN_CHECK_OK(check_numbers("values", layer, rows.values, kF16Limit));
    if (rows.positions.empty()) return {};
    KVSPAN_TRY(const std::int32_t sequence, own_number());
    const DeviceStep step{sequence, static_cast<std::int32_t>(rows.positions.size())};
    KVSPAN_TRY(const DeviceRows keys, home.send(0, rows.keys));
    KVSPAN_TRY(const DeviceRows values, home.send(1, rows.values));
    KVSPAN_CHECK_OK(home.cache->append(layer, {&step, 1}, keys, values, home.stream));
    return home.wait();
  });
}

Status DeviceSequence::attend(int layer, const Queries& queries, TensorView<float, 3> out,
                              AttentionScratch&, Team& team) {
  return by_leader(team, [&](DeviceHome::Impl& home) -> Status {
    KVSPAN_CHECK_OK(check_layer(shape(), layer));
    KVSPAN_CHECK_OK(
        check_queries(shape().layers[static_cast<std::size_t>(layer)], layer, queries, out));
    KVSPAN_CHECK_OK(
        check_numbers("queries", layer, queries.rows, std::numeric_limits<float>::infinity()));
    KVSPAN_CHECK_OK(check_held(layer, next(layer)));
    KVSPAN_CHECK_OK(check_last_positions(layer, queries.positions, next(layer)));
    if (queries.positions.empty()) return {};
    const DeviceStep step{number_, static_cast<std::int32_t>(queries.positions.size())};
    KVSPAN_TRY(const DeviceRows rows, home.send(0, queries.rows));
    KVSPAN_TRY(float* const answers, home.staged(1, out.shape[0] * out.shape[1] * out.shape[2]));
    KVSPAN_CHECK_OK(home.cache->attend(layer, {&step, 1}, rows, {answers, DeviceNumber::kF32},
                                       home.stream));
    return home.fetch(1, out);
  });
}

Status DeviceSequence::settle(int layer, Team& team) {
  return by_leader(team, [&](DeviceHome::Impl& home) -> Status {
    KVSPAN_CHECK_OK(check_layer(shape(), layer));
    if (number_ < 0) return {};
    const DeviceStep step{number_, 0};
    return home.cache->settle(layer, {&step, 1}, home.stream);
  });
}

Status DeviceSequence::truncate(std::int32_t n) {
  const auto lock = home_->lock();
  return number_ < 0 ? Status() : home_->device().truncate(number_, std::max(n, 0));
}

std::int32_t DeviceSequence::least_tokens() const noexcept {
  const auto lock = home_->lock();
  return number_ < 0 ? 1 : *home_->device().least_tokens(number_);
}

void DeviceSequence::clear() {
  const auto lock = home_->lock();
  if (number_ >= 0) (void)home_->device().remove(number_);
  number_ = -1;
}

Result<std::unique_ptr<KvCache>> DeviceSequence::fork() const {
  auto made = std::make_unique<DeviceSequence>(home_);
  const auto lock = home_->lock();
  if (number_ >= 0) {
    KVSPAN_TRY(made->number_, home_->device().fork(number_, home_->stream()));
  }
  return std::unique_ptr<KvCache>(std::move(made));
}

CacheBytes DeviceSequence::bytes() const {
  const auto lock = home_->lock();
  CacheBytes bytes;
  if (number_ >= 0) bytes = *home_->device().bytes(number_);
  bytes.shared = home_->shared_bytes();
  return bytes;
}

Result<std::unique_ptr<MethodCache>> DeviceSequence::on_host() const {
  DeviceHome::Impl& home = *home_->impl_;
  const auto lock = home_->lock();
  const DeviceCache::Impl& device = *home.cache->impl_;
  if (number_ < 0) return std::make_unique<MethodCache>(device.prepared());
  return device.to_host(number_, home.stream);
}

Status DeviceSequence::save(const ByteSink& sink) const {
  KVSPAN_TRY(const auto host, on_host());
  return host->save(sink);
}

}  // namespace kvspan
