// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "api/kept_elsewhere.h"
#include "base/fail.h"
#include "kvspan/saved_cache.h"
#include "method/method_cache.h"

namespace kvspan {

Result<SavedCache> save_with_runs(const KvCache& cache) {
  if (const auto* elsewhere = dynamic_cast<const KeptElsewhere*>(&cache)) {
    KVSPAN_TRY(const auto host, elsewhere->on_host());
    return save_with_runs(*host);
  }
  SavedCache saved;
  if (const auto* methods = dynamic_cast<const MethodCache*>(&cache)) {
    const ByteSink keep = [&](std::span<const std::byte> piece) -> Status {
      saved.bytes.insert(saved.bytes.end(), piece.begin(), piece.end());
      return {};
    };
    KVSPAN_CHECK_OK(methods->save(keep, &saved.runs));
  } else {
    KVSPAN_TRY(saved.bytes, cache.save());
  }
  return saved;
}

}  // namespace kvspan
