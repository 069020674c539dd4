// SPDX-License-Identifier: Apache-2.0
#include "base/expect.h"

#include <cstdio>
#include <cstdlib>

namespace kvspan::detail {

void expectation_failed(const char* condition, const char* message, const char* file,
                        int line) noexcept {
  std::fprintf(stderr, "kvspan: %s:%d: expected %s: %s\n", file, line, condition, message);
  std::abort();
}

}  // namespace kvspan::detail
