// SPDX-License-Identifier: Apache-2.0
#include "store/memory_blobs.h"

#include <algorithm>
#include <utility>

#include "base/fail.h"

namespace kvspan {

std::string MemoryBlobs::describe() const {
  return fmt::format("memory, up to {} bytes", limit_);
}

const MemoryBlobs::Entry* MemoryBlobs::find(const std::string& key) {
  const auto place = places_.find(key);
  if (place == places_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, place->second);
  return &*place->second;
}

void MemoryBlobs::erase(const std::string& key) {
  const auto place = places_.find(key);
  if (place == places_.end()) return;
  bytes_ -= cost(place->second->bytes.size());
  entries_.erase(place->second);
  places_.erase(place);
}

Result<std::vector<std::optional<std::vector<std::byte>>>> MemoryBlobs::get(
    std::span<const std::string> keys, std::size_t most_bytes) {
  const std::lock_guard lock(mutex_);
  std::vector<std::optional<std::vector<std::byte>>> found;
  for (const std::string& key : keys) {
    const Entry* entry = find(key);
    if (entry == nullptr) {
      found.emplace_back();
      continue;
    }
    const std::size_t size = std::min(entry->bytes.size(), most_bytes + 1);
    found.emplace_back(std::in_place, entry->bytes.begin(),
                       entry->bytes.begin() + static_cast<std::ptrdiff_t>(size));
  }
  return found;
}

Result<std::vector<bool>> MemoryBlobs::has(std::span<const std::string> keys) {
  const std::lock_guard lock(mutex_);
  std::vector<bool> found;
  for (const std::string& key : keys) found.push_back(find(key) != nullptr);
  return found;
}

Status MemoryBlobs::put(std::span<const BlobView> blobs) {
  std::uint64_t sum = 0;
  for (const BlobView& blob : blobs) sum += cost(blob.bytes.size());
  if (sum > limit_) {
    return fail(ErrorCode::kOutOfBudget, "{} bytes do not fit a store of {}", sum, limit_);
  }
  const std::lock_guard lock(mutex_);
  for (const BlobView& blob : blobs) {
    erase(blob.key);
    while (bytes_ + cost(blob.bytes.size()) > limit_) erase(std::string(entries_.back().key));
    entries_.push_front({blob.key, {blob.bytes.begin(), blob.bytes.end()}});
    places_[blob.key] = entries_.begin();
    bytes_ += cost(blob.bytes.size());
  }
  return {};
}

void MemoryBlobs::remove(std::span<const std::string> keys) {
  const std::lock_guard lock(mutex_);
  for (const std::string& key : keys) erase(key);
}

std::uint64_t MemoryBlobs::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

}  // namespace kvspan
