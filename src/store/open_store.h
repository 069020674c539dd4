// SPDX-License-Identifier: Apache-2.0
// Places of stores as people write them:
//     memory:SIZE            memory:512MiB
//     disk:FOLDER[:SIZE]     disk:/var/cache/kvspan:20GiB
//     redis://[user:password@]host[:port][/database]
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "kvspan/result.h"
#include "store/blobs.h"

namespace kvspan {

inline constexpr std::uint64_t kDiskStoreBytes = std::uint64_t{10} << 30;  // where none is named
inline constexpr std::int64_t kStoreTtlSeconds = 24 * 3600;

// kInvalidArgument, with what is allowed, on anything else. Redis need not be there yet.
Result<std::unique_ptr<Blobs>> open_blobs(std::string_view place,
                                          std::int64_t ttl_seconds = kStoreTtlSeconds);

}  // namespace kvspan
