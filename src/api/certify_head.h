// SPDX-License-Identifier: Apache-2.0
// Certificates of caches behind the common interface.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "attention/certificate/certificate.h"
#include "kvspan/cache.h"

namespace kvspan {

// Whether caches of the recipe have certificates: rows are coded with certify=on, and every token is
// read. False for one that does not parse.
bool has_certificates(std::string_view recipe);

// The largest bounds of one query's heads that read the KV head, over what the cache holds now. One
// query: rows [1, query_heads, key_dim]. Nothing where the cache has no certificates. Costs as much as
// rebuilding every row of the head; between steps only.
std::optional<Certificate> certify_head(const KvCache& cache, int layer, std::int32_t kv_head,
                                        const Queries& query);

}  // namespace kvspan
