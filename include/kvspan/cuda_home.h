// SPDX-License-Identifier: Apache-2.0
// Caches of kvspan/cache.h in the memory of a CUDA device, for programs that know that interface alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

#include "kvspan/cache.h"
#include "kvspan/cuda.h"
#include "kvspan/result.h"

namespace kvspan {

// Its caches are sequences of one device cache: those of a factory that is `kept_in` it.
// Their own steps copy rows to the device and results back; an engine whose rows are there takes the
// device cache and the sequences' numbers. Different caches may be used from different threads: calls
// take turns. Rows continue a cache's positions from 0 without gaps, queries are at its last
// positions, and what has been coded cannot be truncated; other calls are refused.
class DeviceHome final : public CacheHome, public std::enable_shared_from_this<DeviceHome> {
 public:
  // stream: on which all calls of the device cache are; whoever gives it keeps it while there are any.
  // Null: one of its own.
  static Result<std::shared_ptr<DeviceHome>> create(const CacheFactory& caches,
                                                    const DeviceOptions& options,
                                                    DeviceStream stream = nullptr);
  ~DeviceHome() override;

  std::unique_ptr<KvCache> make() override;
  std::size_t shared_bytes() const noexcept override;
  Result<std::unique_ptr<KvCache>> take(const KvCache& host) override;

  // The home of a cache; null: it is no device's.
  static std::shared_ptr<DeviceHome> of(const KvCache& cache) noexcept;
  // Its number. A cache that holds nothing yet gets one here.
  static Result<std::int32_t> sequence_of(KvCache& cache);
  // Calls of it hold lock(): sequences of other threads' caches are in the same memory.
  DeviceCache& device() noexcept;
  // Waits for calls of other threads. Its holder calls no member of a cache.
  std::unique_lock<std::mutex> lock();
  // On which all calls of the device cache have to be.
  DeviceStream stream() const noexcept;

 private:
  class Impl;
  friend class DeviceSequence;
  explicit DeviceHome(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvspan
