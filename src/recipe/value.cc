// SPDX-License-Identifier: Apache-2.0
#include "recipe/value.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <limits>

namespace kvspan {
namespace {

constexpr std::int64_t kMaxCount = std::numeric_limits<std::int32_t>::max();

// Digits only: no sign, no blank, nothing left over.
std::optional<std::int64_t> read_count(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.front() == '-') {
    return std::nullopt;
  }
  if (value > kMaxCount) return std::nullopt;
  return value;
}

std::optional<double> read_plain(std::string_view text) {
  double value = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) {
    return std::nullopt;
  }
  return value == 0.0 ? 0.0 : value;  // -0 is 0
}

std::optional<double> read_number(std::string_view text) {
  if (!text.ends_with('%')) return read_plain(text);
  const auto percent = read_plain(text.substr(0, text.size() - 1));
  if (!percent) return std::nullopt;
  return *percent / 100.0;
}

std::optional<Value> read_rank(std::string_view text) {
  RankValue rank;
  if (text == "full") return rank;
  if (text.starts_with('d')) {
    const auto divisor =
        text == "d" ? 1 : (text.starts_with("d/") ? read_count(text.substr(2)) : std::nullopt);
    if (!divisor || *divisor < 1) return std::nullopt;
    rank.form = RankValue::Form::kDivisor;
    rank.count = static_cast<std::int32_t>(*divisor);
    return rank;
  }
  if (const auto count = read_count(text)) {
    if (*count < 1) return std::nullopt;
    rank.form = RankValue::Form::kCount;
    rank.count = static_cast<std::int32_t>(*count);
    return rank;
  }
  const auto share = read_number(text);
  if (!share || !(*share > 0.0 && *share <= 1.0)) return std::nullopt;
  rank.form = RankValue::Form::kShare;
  rank.share = *share;
  return rank;
}

std::optional<Value> read_amount(std::string_view text) {
  if (const auto count = read_count(text)) return Amount{false, static_cast<double>(*count)};
  const auto share = read_number(text);
  if (!share || !(*share >= 0.0 && *share <= 1.0)) return std::nullopt;
  return Amount{true, *share};
}

std::optional<Value> read_rows(std::string_view text) {
  SketchRows rows;
  rows.times_rank = text.ends_with('r');
  const auto count = read_count(text.substr(0, text.size() - (rows.times_rank ? 1 : 0)));
  if (!count || *count < 1) return std::nullopt;
  rows.count = static_cast<std::int32_t>(*count);
  return rows;
}

struct ByteUnit {
  std::string_view name;
  double bytes;
};
constexpr std::array<ByteUnit, 9> kUnits{{{"TiB", 0x1p40},
                                          {"GiB", 0x1p30},
                                          {"MiB", 0x1p20},
                                          {"KiB", 0x1p10},
                                          {"TB", 1e12},
                                          {"GB", 1e9},
                                          {"MB", 1e6},
                                          {"kB", 1e3},
                                          {"B", 1.0}}};

std::optional<Value> read_bytes(std::string_view text) {
  double unit_bytes = 1.0;
  for (const ByteUnit& unit : kUnits) {
    if (!text.ends_with(unit.name)) continue;
    unit_bytes = unit.bytes;
    text.remove_suffix(unit.name.size());
    break;
  }
  const auto number = read_plain(text);
  if (!number) return std::nullopt;
  const double bytes = std::round(*number * unit_bytes);
  if (!(bytes >= 0.0 && bytes <= 0x1p52)) return std::nullopt;
  return ByteCount{static_cast<std::uint64_t>(bytes)};
}

std::optional<Value> read_levels(std::string_view text) {
  LevelSet set;
  while (true) {
    const std::size_t slash = text.find('/');
    const std::string_view item = text.substr(0, slash);
    const std::size_t dash = item.find('-');
    const auto low = read_count(item.substr(0, dash));
    const auto high = dash == std::string_view::npos ? low : read_count(item.substr(dash + 1));
    if (!low || !high || *low > *high || *high > LevelSet::kMax) return std::nullopt;
    for (std::int64_t level = *low; level <= *high; ++level) {
      set.bits = static_cast<std::uint16_t>(set.bits | 1u << level);
    }
    if (slash == std::string_view::npos) return set;
    text.remove_prefix(slash + 1);
  }
}

std::string text_of_number(double value) {
  return fmt::format("{}", value);  // shortest digits that read back to the same number
}

// The fewest digits whose hundredth is `value` again; the plain number where rounding allows none.
std::string text_of_share(double value) {
  for (int digits = 1; digits <= 17; ++digits) {
    const std::string text = fmt::format("{:.{}g}%", 100.0 * value, digits);
    if (text.find('e') == std::string::npos && read_number(text) == value) return text;
  }
  return text_of_number(value);
}

// A share must not look like a count when it is 1 (or 0).
std::string text_of_part(double share) {
  const std::string text = text_of_number(share);
  return read_count(text) ? text + ".0" : text;
}

std::string text_of_rank(const RankValue& rank) {
  switch (rank.form) {
    case RankValue::Form::kFull:
      return "full";
    case RankValue::Form::kCount:
      return fmt::format("{}", rank.count);
    case RankValue::Form::kDivisor:
      return rank.count == 1 ? "d" : fmt::format("d/{}", rank.count);
    case RankValue::Form::kShare:
      break;
  }
  return text_of_part(rank.share);
}

std::string text_of_bytes(std::uint64_t bytes) {
  for (const ByteUnit& unit : kUnits) {
    const auto unit_bytes = static_cast<std::uint64_t>(unit.bytes);
    if (unit.name.ends_with("iB") && bytes > 0 && bytes % unit_bytes == 0) {
      return fmt::format("{}{}", bytes / unit_bytes, unit.name);
    }
  }
  return fmt::format("{}B", bytes);
}

// Three or more neighbours become a range.
std::string text_of_levels(LevelSet set) {
  std::string text;
  for (int low = 0; low <= LevelSet::kMax; ++low) {
    if (!set.contains(low)) continue;
    int high = low;
    while (set.contains(high + 1)) ++high;
    if (high < low + 2) high = low;
    text += text.empty() ? "" : "/";
    text += high == low ? fmt::format("{}", low) : fmt::format("{}-{}", low, high);
    low = high;
  }
  return text;
}

}  // namespace

std::string_view name_of(ValueKind kind) noexcept {
  constexpr std::array<std::string_view, 9> kNames{"word",   "count", "number", "share", "rank",
                                                   "amount", "rows",  "bytes",  "levels"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::optional<std::int32_t> RankValue::resolve(std::int32_t dim) const noexcept {
  switch (form) {
    case Form::kFull:
      return std::nullopt;
    case Form::kCount:
      return count;
    case Form::kDivisor:
      return std::max(1, dim / count);
    case Form::kShare:
      break;
  }
  return std::max(1, static_cast<std::int32_t>(std::lround(share * dim)));
}

std::int64_t Amount::resolve(std::int64_t total) const noexcept {
  const double tokens = is_share ? value * static_cast<double>(total) : value;
  return std::min<std::int64_t>(total, std::llround(tokens));
}

std::int64_t SketchRows::resolve(std::int64_t rank) const noexcept {
  return times_rank ? count * rank : count;
}

int LevelSet::lowest() const noexcept {
  return std::countr_zero(bits);
}
int LevelSet::highest() const noexcept {
  return std::bit_width(bits) - 1;
}

std::optional<Value> read_value(ValueKind kind, std::string_view text) {
  if (text.empty()) return std::nullopt;
  switch (kind) {
    case ValueKind::kWord:
      break;
    case ValueKind::kCount:
      return read_count(text);
    case ValueKind::kNumber:
    case ValueKind::kShare:
      return read_number(text);
    case ValueKind::kRank:
      return read_rank(text);
    case ValueKind::kAmount:
      return read_amount(text);
    case ValueKind::kRows:
      return read_rows(text);
    case ValueKind::kBytes:
      return read_bytes(text);
    case ValueKind::kLevels:
      return read_levels(text);
  }
  return std::nullopt;
}

std::string text_of(ValueKind kind, const Value& value) {
  if (const auto* word = std::get_if<std::string_view>(&value)) return std::string(*word);
  if (const auto* count = std::get_if<std::int64_t>(&value)) return fmt::format("{}", *count);
  if (const auto* number = std::get_if<double>(&value)) {
    return kind == ValueKind::kShare ? text_of_share(*number) : text_of_number(*number);
  }
  if (const auto* rank = std::get_if<RankValue>(&value)) return text_of_rank(*rank);
  if (const auto* amount = std::get_if<Amount>(&value)) {
    return amount->is_share ? text_of_part(amount->value) : fmt::format("{:.0f}", amount->value);
  }
  if (const auto* rows = std::get_if<SketchRows>(&value)) {
    return fmt::format("{}{}", rows->count, rows->times_rank ? "r" : "");
  }
  if (const auto* bytes = std::get_if<ByteCount>(&value)) return text_of_bytes(bytes->bytes);
  if (const auto* levels = std::get_if<LevelSet>(&value)) return text_of_levels(*levels);
  return {};
}

}  // namespace kvspan
