// SPDX-License-Identifier: Apache-2.0
// What a factory's caches are made from, for rooms that keep them elsewhere than in the host's memory.
#pragma once

#include <memory>

#include "kvspan/cache.h"
#include "method/prepared.h"

namespace kvspan {

const std::shared_ptr<const Prepared>& prepared_of(const CacheFactory& factory) noexcept;

}  // namespace kvspan
