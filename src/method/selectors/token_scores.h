// SPDX-License-Identifier: Apache-2.0
// One number per token, grown as tokens come and counted on the ledger: the attention received.
// The memory is that of the tokens known, rounded up to 256; it returns as tokens are forgotten.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "base/byte_stream.h"
#include "base/memory.h"

namespace kvspan {

class TokenScores {
 public:
  TokenScores() = default;
  TokenScores(const TokenScores& other);
  TokenScores& operator=(const TokenScores& other);
  TokenScores(TokenScores&&) noexcept = default;
  TokenScores& operator=(TokenScores&&) noexcept = default;

  std::span<const float> values() const noexcept { return {memory_.as<float>(), size_}; }
  // values[i] += more[i]; tokens beyond those known start from 0.
  void add(std::span<const float> more, const std::shared_ptr<Ledger>& ledger,
           MemoryKind kind = MemoryKind::kPositions);
  // All of them become 0.
  void reset() noexcept;
  // Forgets those with keep[i] == 0, i counting from `first`.
  void select(std::int32_t first, std::span<const std::uint8_t> keep) noexcept;
  void drop_first(std::int32_t tokens) noexcept;
  void truncate(std::int32_t size) noexcept;
  std::size_t bytes() const noexcept { return memory_.bytes(); }

  // Their number, then the numbers. What is read is finite and of at most `most` tokens.
  void save(ByteWriter& out) const;
  Status load(std::string_view field, std::int32_t most, ByteReader& in,
              const std::shared_ptr<Ledger>& ledger, MemoryKind kind = MemoryKind::kPositions);

 private:
  void shrink() noexcept;

  Buffer memory_;
  std::size_t size_ = 0;
  MemoryKind kind_ = MemoryKind::kPositions;
  std::shared_ptr<Ledger> ledger_;
};

}  // namespace kvspan
