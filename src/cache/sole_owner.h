// SPDX-License-Identifier: Apache-2.0
// Copy on write for a Buffer that forks of a cache share.
#pragma once

#include <memory>

#include "base/memory.h"

namespace kvspan {

// Afterwards nobody else holds *buffer: it is cloned if somebody did. use_count() alone orders
// nothing; letting go of a second reference is an acquire and release of the count, which puts our
// writes after the last reads of an owner that has just left. (A fence would do, but the thread
// sanitizer cannot see fences.)
inline void make_sole_owner(std::shared_ptr<Buffer>& buffer,
                            const std::shared_ptr<Ledger>& ledger) {
  if (buffer.use_count() == 1) {
    std::shared_ptr<Buffer>(buffer).reset();
  } else {
    buffer = std::make_shared<Buffer>(buffer->clone(ledger));
  }
}

}  // namespace kvspan
