// SPDX-License-Identifier: Apache-2.0
#include "eval/shared_reading.h"

#include "base/fail.h"

namespace kvspan {

SharedReading::SharedReading(std::unique_ptr<KvCache> reader,
                             std::vector<std::unique_ptr<KvCache>> others)
    : WrappedCache(std::move(reader)), others_(std::move(others)) {}

Status SharedReading::append(int layer, const KvRows& rows, Team& team) {
  KVSPAN_CHECK_OK(WrappedCache::append(layer, rows, team));
  for (const auto& other : others_) KVSPAN_CHECK_OK(other->append(layer, rows, team));
  return {};
}

Status SharedReading::settle(int layer, Team& team) {
  KVSPAN_CHECK_OK(WrappedCache::settle(layer, team));
  for (const auto& other : others_) KVSPAN_CHECK_OK(other->settle(layer, team));
  return {};
}

std::vector<std::unique_ptr<KvCache>> SharedReading::finish() && {
  std::vector<std::unique_ptr<KvCache>> out;
  out.push_back(release());
  for (auto& other : others_) out.push_back(std::move(other));
  return out;
}

}  // namespace kvspan
