// SPDX-License-Identifier: Apache-2.0
#include "api/layer_bytes.h"

#include "api/wrapped_cache.h"
#include "method/method_cache.h"

namespace kvspan {

std::vector<std::size_t> layer_bytes(const KvCache& cache) {
  if (const auto* outer = dynamic_cast<const WrappedCache*>(&cache)) {
    return layer_bytes(outer->wrapped());
  }
  const auto* methods = dynamic_cast<const MethodCache*>(&cache);
  return methods != nullptr ? methods->layer_bytes() : std::vector<std::size_t>();
}

}  // namespace kvspan
