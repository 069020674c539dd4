// SPDX-License-Identifier: Apache-2.0
#include "method/token_scores.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace kvspan {
namespace {

// Tokens by which the memory grows.
constexpr std::size_t kStep = 256;

}  // namespace

TokenScores::TokenScores(const TokenScores& other)
    : memory_(other.memory_.bytes() > 0 ? other.memory_.clone(other.ledger_) : Buffer()),
      size_(other.size_),
      ledger_(other.ledger_) {}

TokenScores& TokenScores::operator=(const TokenScores& other) {
  if (this != &other) *this = TokenScores(other);
  return *this;
}

void TokenScores::reset() noexcept {
  std::fill_n(memory_.as<float>(), size_, 0.0f);
}

void TokenScores::add(std::span<const float> more, const std::shared_ptr<Ledger>& ledger,
                      MemoryKind kind) {
  const std::size_t wanted = std::max(size_, more.size());
  if (wanted * sizeof(float) > memory_.bytes()) {
    Buffer grown((wanted + kStep - 1) / kStep * kStep * sizeof(float), kind, ledger);
    if (size_ > 0) std::memcpy(grown.data(), memory_.data(), size_ * sizeof(float));
    memory_ = std::move(grown);
    ledger_ = ledger;
  }
  float* to = memory_.as<float>();
  std::fill(to + size_, to + wanted, 0.0f);
  size_ = wanted;
  for (std::size_t i = 0; i < more.size(); ++i) to[i] += more[i];
}

void TokenScores::select(std::int32_t first, std::span<const std::uint8_t> keep) noexcept {
  float* values = memory_.as<float>();
  const auto from = static_cast<std::size_t>(first);
  std::size_t to = std::min(from, size_);
  for (std::size_t i = to; i < size_; ++i) {
    if (i - from < keep.size() && keep[i - from] == 0) continue;
    values[to++] = values[i];
  }
  size_ = to;
}

void TokenScores::truncate(std::int32_t size) noexcept {
  size_ = std::min(size_, static_cast<std::size_t>(size));
}

}  // namespace kvspan
