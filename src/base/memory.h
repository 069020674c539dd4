// SPDX-License-Identifier: Apache-2.0
// Aligned memory whose every byte is on a ledger from allocation to release, so that the bytes a
// cache reports are the bytes it holds.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

namespace kvspan {

// What a byte is for. Reports list these apart.
enum class MemoryKind : std::uint8_t {
  kFullRank,      // rows kept as they are: the ends, escapes, the full cache
  kCoefficients,  // packed coefficients
  kScales,        // gains and scales
  kBases,         // bases, means and tables held by this sequence
  kSketches,      // what trackers keep while learning
  kPositions,     // positions, residual norms, received attention
  kShared,        // codes shared by all sequences of a model; on a line of their own
  kCount,
};
inline constexpr std::size_t kMemoryKinds = static_cast<std::size_t>(MemoryKind::kCount);
std::string_view name_of(MemoryKind kind) noexcept;

// Running totals by kind. Safe to use from several threads.
class Ledger {
 public:
  void add(MemoryKind kind, std::size_t bytes) noexcept;
  void remove(MemoryKind kind, std::size_t bytes) noexcept;
  std::size_t bytes(MemoryKind kind) const noexcept;
  std::size_t total() const noexcept;  // all kinds but kShared

 private:
  std::array<std::atomic<std::size_t>, kMemoryKinds> bytes_{};
};

// An owned block of memory, aligned to a cache line, its size rounded up to whole cache lines (the
// rounded size is what is counted and allocated). Contents start as zeros. Move-only.
class Buffer {
 public:
  static constexpr std::size_t kAlignment = 64;
  // Bytes beside those that are counted, to align by hand: what the library's own aligned blocks
  // leave when they are freed is too small for the next of the same size (glibc before 2.38), so
  // that a cache whose rows come and go would leave a hole for each. None with sanitizers, which
  // watch the end of a block.
#if defined(__SANITIZE_ADDRESS__)
  static constexpr std::size_t kRoom = 0;
#else
  static constexpr std::size_t kRoom = kAlignment;
#endif

  Buffer() = default;
  // `ledger` may be null (memory that no cache holds); otherwise the Buffer keeps it alive.
  Buffer(std::size_t bytes, MemoryKind kind, std::shared_ptr<Ledger> ledger);
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  static constexpr std::size_t allocated_for(std::size_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

  std::byte* data() noexcept {
    return data_;
  }
  const std::byte* data() const noexcept {
    return data_;
  }
  std::size_t bytes() const noexcept {
    return bytes_;
  }

  template <class T>
  T* as() noexcept {
    return reinterpret_cast<T*>(data_);
  }
  template <class T>
  const T* as() const noexcept {
    return reinterpret_cast<const T*>(data_);
  }
  // The same bytes in new memory, on the same ledger or another.
  Buffer clone(std::shared_ptr<Ledger> ledger) const;

 private:
  void release() noexcept;

  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  MemoryKind kind_ = MemoryKind::kFullRank;
  std::shared_ptr<Ledger> ledger_;
};

// Floats that take whole cache lines, as many as `count` need.
constexpr std::size_t floats_in_lines(std::size_t count) {
  return Buffer::allocated_for(count * sizeof(float)) / sizeof(float);
}

// Gives what has been freed back to the system, where the C library would keep it for later: after
// work whose memory is not needed again. Some milliseconds; nothing where the library has no such
// call.
void return_free_memory() noexcept;

}  // namespace kvspan
