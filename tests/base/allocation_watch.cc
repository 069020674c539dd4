// SPDX-License-Identifier: Apache-2.0
#include "tests/base/allocation_watch.h"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>

#include "base/memory.h"

namespace {

std::atomic<long long> buffers{0}, others{0};
std::atomic<std::size_t> largest{0};

constexpr std::size_t kNever = std::numeric_limits<std::size_t>::max();
// Allocations of this thread until the one that fails.
thread_local std::size_t until_failure = kNever;
thread_local bool fails_from_then = false, failed = false;

// Before each block is how many of its bytes count.
constexpr std::size_t kHeader = 64;

void count_down() {
  if (until_failure == kNever) return;
  if (until_failure > 0) {
    --until_failure;
    return;
  }
  failed = true;
  if (!fails_from_then) until_failure = kNever;
  throw std::bad_alloc();
}

// Memory of `size` bytes, of which `counts` count.
void* watched(std::size_t size, std::size_t counts, std::atomic<long long>& count) {
  std::size_t seen = largest.load(std::memory_order_relaxed);
  while (counts > seen && !largest.compare_exchange_weak(seen, counts)) {
  }
  count_down();
  void* memory = std::aligned_alloc(kHeader, kHeader + (size + kHeader - 1) / kHeader * kHeader);
  if (memory == nullptr) throw std::bad_alloc();
  std::memcpy(memory, &counts, sizeof(counts));
  count += static_cast<long long>(counts);
  return static_cast<char*>(memory) + kHeader;
}

void unwatched(void* memory, std::atomic<long long>& count) noexcept {
  if (memory == nullptr) return;
  void* start = static_cast<char*>(memory) - kHeader;
  std::size_t counts = 0;
  std::memcpy(&counts, start, sizeof(counts));
  count -= static_cast<long long>(counts);
  std::free(start);
}

}  // namespace

void* operator new(std::size_t size) {
  return watched(size, size, others);
}
// std::stable_sort asks this one; it must match our operator delete.
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  try {
    return operator new(size);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void* operator new(std::size_t size, std::align_val_t alignment) {
  if (static_cast<std::size_t>(alignment) > kHeader) std::abort();
  return watched(size, size - kvspan::Buffer::kRoom, buffers);
}
void operator delete(void* memory) noexcept {
  unwatched(memory, others);
}
void operator delete(void* memory, std::size_t) noexcept {
  unwatched(memory, others);
}
void operator delete(void* memory, const std::nothrow_t&) noexcept {
  unwatched(memory, others);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  unwatched(memory, buffers);
}
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  unwatched(memory, buffers);
}

namespace kvspan::testing {

long long buffer_bytes() noexcept {
  return buffers;
}
long long plain_bytes() noexcept {
  return others;
}

void begin_allocation_watch() noexcept {
  largest = 0;
}
std::size_t largest_allocation() noexcept {
  return largest;
}

FailingAllocation::FailingAllocation(std::size_t nth, Failing failing) noexcept {
  failed = false;
  fails_from_then = failing == Failing::kFromThen;
  until_failure = nth;
}
FailingAllocation::~FailingAllocation() {
  until_failure = kNever;
}
bool FailingAllocation::reached() const noexcept {
  return failed;
}

}  // namespace kvspan::testing
