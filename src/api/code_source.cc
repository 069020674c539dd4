// SPDX-License-Identifier: Apache-2.0
#include "api/code_source.h"

#include "api/wrapped_cache.h"
#include "method/method_cache.h"

namespace kvspan {

std::string code_source(const KvCache& cache) {
  if (const auto* outer = dynamic_cast<const WrappedCache*>(&cache)) {
    return code_source(outer->wrapped());
  }
  const auto* methods = dynamic_cast<const MethodCache*>(&cache);
  return methods != nullptr ? methods->code_source() : "";
}

}  // namespace kvspan
