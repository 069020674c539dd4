// SPDX-License-Identifier: Apache-2.0
// A store's entries in the memory of this program.
#pragma once

#include <list>
#include <mutex>
#include <unordered_map>

#include "store/blobs.h"

namespace kvspan {

class MemoryBlobs final : public Blobs {
 public:
  explicit MemoryBlobs(std::uint64_t limit_bytes) : limit_(limit_bytes) {}

  std::string describe() const override;
  Result<std::vector<std::optional<std::vector<std::byte>>>> get(
      std::span<const std::string> keys, std::size_t most_bytes) override;
  Result<std::vector<bool>> has(std::span<const std::string> keys) override;
  // kOutOfBudget, and nothing is kept, where all of it would not fit the limit.
  Status put(std::span<const BlobView> blobs) override;
  void remove(std::span<const std::string> keys) override;
  std::uint64_t bytes() const override;

 private:
  struct Entry {
    std::string key;
    std::vector<std::byte> bytes;
  };
  using Entries = std::list<Entry>;  // the most recently used first
  // With the list's and the table's own, roughly.
  static std::uint64_t cost(std::size_t bytes) { return bytes + 256; }
  const Entry* find(const std::string& key);
  void erase(const std::string& key);

  const std::uint64_t limit_;
  mutable std::mutex mutex_;
  Entries entries_;
  std::unordered_map<std::string, Entries::iterator> places_;
  std::uint64_t bytes_ = 0;
};

}  // namespace kvspan
