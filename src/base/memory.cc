// SPDX-License-Identifier: Apache-2.0
#include "base/memory.h"

#include <cstdlib>  // defines __GLIBC__ where that is the library
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <cstdint>
#include <cstring>
#include <new>
#include <utility>

namespace kvspan {

std::string_view name_of(MemoryKind kind) noexcept {
  constexpr std::array<std::string_view, kMemoryKinds> kNames{
      "full_rank", "coefficients", "scales", "bases", "sketches", "positions", "shared"};
  return kNames[static_cast<std::size_t>(kind)];
}

void Ledger::add(MemoryKind kind, std::size_t bytes) noexcept {
  bytes_[static_cast<std::size_t>(kind)].fetch_add(bytes, std::memory_order_relaxed);
}

void Ledger::remove(MemoryKind kind, std::size_t bytes) noexcept {
  bytes_[static_cast<std::size_t>(kind)].fetch_sub(bytes, std::memory_order_relaxed);
}

std::size_t Ledger::bytes(MemoryKind kind) const noexcept {
  return bytes_[static_cast<std::size_t>(kind)].load(std::memory_order_relaxed);
}

std::size_t Ledger::total() const noexcept {
  std::size_t sum = 0;
  for (std::size_t i = 0; i < kMemoryKinds; ++i) {
    if (static_cast<MemoryKind>(i) != MemoryKind::kShared) {
      sum += bytes(static_cast<MemoryKind>(i));
    }
  }
  return sum;
}

namespace {

// By the aligned operator new in any case, so that who replaces it sees every Buffer.
constexpr std::align_val_t kLibraryAlignment{
    Buffer::kRoom > 0 ? std::size_t{__STDCPP_DEFAULT_NEW_ALIGNMENT__} : Buffer::kAlignment};

// What was allocated is told by the pointer before the block.
std::byte* allocate(std::size_t bytes) {
  void* const whole = ::operator new(bytes + Buffer::kRoom, kLibraryAlignment);
  if constexpr (Buffer::kRoom == 0) return static_cast<std::byte*>(whole);
  const auto at = reinterpret_cast<std::uintptr_t>(whole);
  std::byte* const data =
      static_cast<std::byte*>(whole) + (Buffer::kAlignment - at % Buffer::kAlignment);
  std::memcpy(data - sizeof(whole), &whole, sizeof(whole));
  return data;
}

void deallocate(std::byte* data) noexcept {
  void* whole = data;
  if constexpr (Buffer::kRoom > 0) std::memcpy(&whole, data - sizeof(whole), sizeof(whole));
  ::operator delete(whole, kLibraryAlignment);
}

}  // namespace

Buffer::Buffer(std::size_t bytes, MemoryKind kind, std::shared_ptr<Ledger> ledger)
    : bytes_(allocated_for(bytes)), kind_(kind), ledger_(std::move(ledger)) {
  if (bytes_ == 0) return;
  data_ = allocate(bytes_);
  std::memset(data_, 0, bytes_);
  if (ledger_) ledger_->add(kind_, bytes_);
}

Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      kind_(other.kind_),
      ledger_(std::move(other.ledger_)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this != &other) {
    release();
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    kind_ = other.kind_;
    ledger_ = std::move(other.ledger_);
  }
  return *this;
}

Buffer::~Buffer() {
  release();
}

Buffer Buffer::clone(std::shared_ptr<Ledger> ledger) const {
  Buffer copy(bytes_, kind_, std::move(ledger));
  if (bytes_ != 0) std::memcpy(copy.data_, data_, bytes_);
  return copy;
}

void Buffer::release() noexcept {
  if (data_ == nullptr) return;
  deallocate(data_);
  if (ledger_) ledger_->remove(kind_, bytes_);
  data_ = nullptr;
  bytes_ = 0;
}

void return_free_memory() noexcept {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

}  // namespace kvspan
