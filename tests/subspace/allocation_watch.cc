// SPDX-License-Identifier: Apache-2.0
// Replaces operator new and delete of this test program.
#include "tests/subspace/allocation_watch.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>

#include "base/memory.h"

namespace {

std::atomic<std::size_t> largest{0};

// Memory of `bytes` bytes, of which `counts` count.
void* watched(std::size_t bytes, std::size_t counts, std::size_t alignment) {
  std::size_t seen = largest.load(std::memory_order_relaxed);
  while (counts > seen && !largest.compare_exchange_weak(seen, counts)) {
  }
  const std::size_t whole =
      (std::max<std::size_t>(bytes, 1) + alignment - 1) / alignment * alignment;
  if (void* memory = std::aligned_alloc(alignment, whole)) return memory;
  throw std::bad_alloc();
}

}  // namespace

void* operator new(std::size_t bytes) {
  return watched(bytes, bytes, alignof(std::max_align_t));
}
// std::stable_sort asks this one; it must match our operator delete.
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  try {
    return operator new(bytes);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
// A Buffer has room to be aligned, which does not count.
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return watched(bytes, bytes - kvspan::Buffer::kRoom, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}

namespace kvspan {

void begin_allocation_watch() noexcept {
  largest = 0;
}
std::size_t largest_allocation() noexcept {
  return largest;
}

}  // namespace kvspan
