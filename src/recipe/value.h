// SPDX-License-Identifier: Apache-2.0
// What the value of a recipe's key can be, and how it is written. Each form reads and prints itself
// so that printing gives the canonical text and reading that gives an equal value. No form contains
// ',' '+' ':' or '=', which separate a recipe's parts.
//
//     count    16                    whole number
//     number   0.15 1e-05 15%        real; % divides by 100. Prints as 0.15
//     share    5% 0.05               the same, prints as 5%
//     rank     full 16 d/4 d 0.25    directions kept of d; a number with a point is a share of d
//     amount   1024 0.5 50%          tokens, or a share of them
//     rows     2r 64                 rows of a sketch, or a multiple of the rank
//     bytes    512MiB 1.5GiB 64kB    1024s with i, 1000s without
//     levels   0-6/8                 set of bit widths
//     word     f16                   one of a set
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

namespace kvspan {

enum class ValueKind : std::uint8_t {
  kWord,
  kCount,
  kNumber,
  kShare,
  kRank,
  kAmount,
  kRows,
  kBytes,
  kLevels,
};
std::string_view name_of(ValueKind kind) noexcept;

struct RankValue {
  enum class Form : std::uint8_t { kFull, kCount, kDivisor, kShare };
  Form form = Form::kFull;
  std::int32_t count = 0;  // directions, or the n of d/n
  double share = 0.0;      // in (0, 1]

  bool is_full() const noexcept { return form == Form::kFull; }
  // Directions out of `dim`, at least 1; nullopt for `full`: not coded at all. A count is returned
  // as it was written, also where it exceeds `dim`: that is for whoever knows the shape to refuse.
  std::optional<std::int32_t> resolve(std::int32_t dim) const noexcept;
  bool operator==(const RankValue&) const = default;
};

struct Amount {
  bool is_share = false;
  double value = 0.0;  // whole if not a share

  // Tokens out of `total`, rounded to the nearest, at most `total`.
  std::int64_t resolve(std::int64_t total) const noexcept;
  bool operator==(const Amount&) const = default;
};

struct SketchRows {
  bool times_rank = false;
  std::int32_t count = 0;

  std::int64_t resolve(std::int64_t rank) const noexcept;
  bool operator==(const SketchRows&) const = default;
};

struct ByteCount {
  std::uint64_t bytes = 0;
  bool operator==(const ByteCount&) const = default;
};

struct LevelSet {
  static constexpr int kMax = 8;
  std::uint16_t bits = 0;  // bit b: width b is allowed

  bool contains(int level) const noexcept { return level >= 0 && (bits >> level & 1) != 0; }
  int lowest() const noexcept;
  int highest() const noexcept;
  bool operator==(const LevelSet&) const = default;
};

// Words point into the declaration that lists them. monostate: not set.
using Value = std::variant<std::monostate, std::string_view, std::int64_t, double, RankValue,
                           Amount, SketchRows, ByteCount, LevelSet>;

// The value that `text` writes, by form alone; nullopt if it is none. Not for words.
std::optional<Value> read_value(ValueKind kind, std::string_view text);
// Canonical text; empty for a value that is not set.
std::string text_of(ValueKind kind, const Value& value);

}  // namespace kvspan
