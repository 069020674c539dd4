// SPDX-License-Identifier: Apache-2.0
// What all kinds of KvCache have in common.
#include <memory>
#include <new>

#include "base/fail.h"
#include "kvspan/cache.h"

namespace kvspan {

std::weak_ptr<const void> KvCache::lifetime() {
  if (!life_) life_ = std::make_shared<const char>();
  return life_;
}

Status KvCache::save(const ByteSink&) const {
  return fail(ErrorCode::kUnsupported, "a cache of {} cannot be saved", recipe());
}

Result<std::vector<std::byte>> KvCache::save() const {
  std::vector<std::byte> bytes;
  try {
    KVSPAN_CHECK_OK(save([&](std::span<const std::byte> piece) -> Status {
      bytes.insert(bytes.end(), piece.begin(), piece.end());
      return {};
    }));
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::kOutOfBudget, "no memory for the bytes of {} tokens", tokens());
  }
  return bytes;
}

}  // namespace kvspan
