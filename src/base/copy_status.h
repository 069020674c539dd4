// SPDX-License-Identifier: Apache-2.0
// An outcome that one thread of a team has found, for every other to return.
#pragma once

#include "base/fail.h"

namespace kvspan {

// Throws nothing, whatever memory is left: an exception must not leave a thread for which others wait.
inline Status copy_of(const Status& outcome) noexcept {
  if (outcome) return {};
  return fail(outcome.error().code, "{}", outcome.error().message);
}

}  // namespace kvspan
