// SPDX-License-Identifier: Apache-2.0
// Copy on write for a Buffer that forks of a cache share.
#pragma once

#include <atomic>
#include <memory>

#include "base/memory.h"

namespace kvspan {

// Afterwards nobody else holds *buffer: it is cloned if somebody did. The fence orders our writes
// after the last reads of an owner that has just let go.
inline void make_sole_owner(std::shared_ptr<Buffer>& buffer,
                            const std::shared_ptr<Ledger>& ledger) {
  if (buffer.use_count() == 1) {
    std::atomic_thread_fence(std::memory_order_acquire);
  } else {
    buffer = std::make_shared<Buffer>(buffer->clone(ledger));
  }
}

}  // namespace kvspan
