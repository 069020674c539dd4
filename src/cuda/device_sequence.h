// SPDX-License-Identifier: Apache-2.0
// One sequence of a device cache as a cache of kvspan/cache.h. Rows that come from the host are
// copied to the device, results back, and each call waits for the device: for layers whose rows are
// not there. Arguments are checked as the host's caches check them (method/check_call.h). The device
// counts tokens: rows at positions with gaps, and queries elsewhere than at the last positions, are
// refused. Calls of different sequences may come from different threads; they take turns.
#pragma once

#include <memory>
#include <string>

#include "api/kept_elsewhere.h"
#include "cuda/device_memory.h"
#include "kvspan/cuda_home.h"

namespace kvspan {

class DeviceSequence final : public KvCache, public KeptElsewhere {
 public:
  // number: of a sequence that is there; below 0: it gets one with its first row.
  explicit DeviceSequence(std::shared_ptr<DeviceHome> home, std::int32_t number = -1)
      : home_(std::move(home)), number_(number) {}
  ~DeviceSequence() override;

  const CacheShape& shape() const noexcept override;
  std::string recipe() const override;
  std::int32_t tokens() const noexcept override;
  Status append(int layer, const KvRows& rows, Team& team) override;
  Status attend(int layer, const Queries& queries, TensorView<float, 3> out,
                AttentionScratch& scratch, Team& team) override;
  Status settle(int layer, Team& team) override;
  Status truncate(std::int32_t n) override;
  std::int32_t least_tokens() const noexcept override;
  void clear() override;
  Result<std::unique_ptr<KvCache>> fork() const override;
  CacheBytes bytes() const override;
  Status save(const ByteSink& sink) const override;
  using KvCache::save;
  Result<std::unique_ptr<MethodCache>> on_host() const override;

  const std::shared_ptr<DeviceHome>& home() const noexcept { return home_; }
  Result<std::int32_t> number();

 private:
  // What the leader finds, for all members.
  template <class Deed>
  Status by_leader(Team& team, Deed deed);
  // For those who hold the home's lock.
  Result<std::int32_t> own_number();
  std::int32_t next(int layer) const;

  std::shared_ptr<DeviceHome> home_;
  std::int32_t number_;  // below 0: none yet
  Status outcome_;            // of a step, while a team reads it
};

}  // namespace kvspan
