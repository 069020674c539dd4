// SPDX-License-Identifier: Apache-2.0
// Where a store keeps its bytes: entries under keys, forgotten when room is needed, the longest unused
// first. What comes back may be anything; who asks checks it. Any thread may call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kvspan/result.h"

namespace kvspan {

// One beyond what any single entry may be.
inline constexpr std::size_t kMostBlobBytes = std::size_t{1} << 31;

struct BlobView {
  std::string key;  // of letters and digits
  std::span<const std::byte> bytes;
};

class Blobs {
 public:
  virtual ~Blobs() = default;
  // For people: what it is and where.
  virtual std::string describe() const = 0;

  // One for each key; none where it is not there. Those found count as used. Of an entry that is
  // longer than `most_bytes` at most one byte more comes back: it costs no more memory than an
  // entry that the caller expects. An error means that nothing can be said now.
  virtual Result<std::vector<std::optional<std::vector<std::byte>>>> get(
      std::span<const std::string> keys, std::size_t most_bytes) = 0;
  // Whether each is there; those that are count as used.
  virtual Result<std::vector<bool>> has(std::span<const std::string> keys) = 0;
  // In this order, so that a later entry may rely on earlier ones. On an error some are there.
  virtual Status put(std::span<const BlobView> blobs) = 0;
  virtual void remove(std::span<const std::string> keys) = 0;

  // Bytes held, as far as this program knows.
  virtual std::uint64_t bytes() const = 0;
};

}  // namespace kvspan
