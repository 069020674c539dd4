// SPDX-License-Identifier: Apache-2.0
// A cache that is kept elsewhere than in the host's memory. What it saves is what its copy there
// does.
#pragma once

#include <memory>

#include "kvspan/result.h"
#include "method/method_cache.h"

namespace kvspan {

class KeptElsewhere {
 public:
  virtual ~KeptElsewhere() = default;
  // A cache in the host's memory that holds the same tokens.
  virtual Result<std::unique_ptr<MethodCache>> on_host() const = 0;
};

}  // namespace kvspan
