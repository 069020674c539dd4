// SPDX-License-Identifier: Apache-2.0
// One number per token, grown as tokens come and counted on the ledger: the attention received.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

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
  void truncate(std::int32_t size) noexcept;
  std::size_t bytes() const noexcept { return memory_.bytes(); }

 private:
  Buffer memory_;
  std::size_t size_ = 0;
  std::shared_ptr<Ledger> ledger_;
};

}  // namespace kvspan
