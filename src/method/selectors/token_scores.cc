// SPDX-License-Identifier: Apache-2.0
#include "method/selectors/token_scores.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <new>
#include <utility>
#include <vector>

namespace kvspan {
namespace {

// Tokens by which the memory grows.
constexpr std::size_t kScoreStep = 256;

constexpr std::size_t bytes_for(std::size_t tokens) {
  return (tokens + kScoreStep - 1) / kScoreStep * kScoreStep * sizeof(float);
}

}  // namespace

TokenScores::TokenScores(const TokenScores& other)
    : memory_(other.memory_.bytes() > 0 ? other.memory_.clone(other.ledger_) : Buffer()),
      size_(other.size_),
      kind_(other.kind_),
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
    Buffer grown(bytes_for(wanted), kind, ledger);
    if (size_ > 0) std::memcpy(grown.data(), memory_.data(), size_ * sizeof(float));
    memory_ = std::move(grown);
    ledger_ = ledger;
    kind_ = kind;
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
  shrink();
}

void TokenScores::drop_first(std::int32_t tokens) noexcept {
  const std::size_t gone = std::min(size_, static_cast<std::size_t>(tokens));
  float* values = memory_.as<float>();
  std::copy(values + gone, values + size_, values);
  size_ -= gone;
  shrink();
}

void TokenScores::shrink() noexcept {
  if (bytes_for(size_) >= memory_.bytes()) return;
  try {
    Buffer less = size_ > 0 ? Buffer(bytes_for(size_), kind_, ledger_) : Buffer();
    if (size_ > 0) std::memcpy(less.data(), memory_.data(), size_ * sizeof(float));
    memory_ = std::move(less);
  } catch (const std::bad_alloc&) {  // it may stay
  }
}

void TokenScores::truncate(std::int32_t size) noexcept {
  size_ = std::min(size_, static_cast<std::size_t>(size));
  shrink();
}

void TokenScores::save(ByteWriter& out) const {
  out.put(static_cast<std::uint32_t>(size_));
  out.put_all(values());
}

Status TokenScores::load(std::string_view field, std::int32_t most, ByteReader& in,
                         const std::shared_ptr<Ledger>& ledger, MemoryKind kind) {
  KVSPAN_TRY(const auto size, in.get<std::uint32_t>("number of tokens"));
  if (size > static_cast<std::uint32_t>(most)) {
    return in.wrong("number of tokens", sizeof(size), size, fmt::format("0 to {}", most));
  }
  KVSPAN_CHECK_OK(in.expect_at_least(field, size * sizeof(float)));
  std::vector<float> numbers(size);
  KVSPAN_CHECK_OK(
      in.get_finite(field, std::span<float>(numbers), std::numeric_limits<float>::max()));
  *this = {};
  add(numbers, ledger, kind);
  return {};
}

}  // namespace kvspan
