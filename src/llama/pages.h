// SPDX-License-Identifier: Apache-2.0
// Memory whose contents are no longer needed, given back to the system page by page.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>

namespace kvspan {

// Pages that lie wholly in the range: those that it shares with its neighbours stay. Reading them
// again gives the file's bytes where they are mapped from one, zeros elsewhere.
inline void give_back_pages(const void* data, std::size_t bytes) {
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  const std::uintptr_t first = (begin + page - 1) / page * page;
  const std::uintptr_t last = (begin + bytes) / page * page;
  if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

}  // namespace kvspan
