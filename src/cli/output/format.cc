// SPDX-License-Identifier: Apache-2.0
#include "cli/output/format.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "llama/tokenizer.h"

namespace kvspan::cli {

std::string format_bytes(std::uint64_t bytes) {
  if (bytes < 1024) return fmt::format("{} B", bytes);
  constexpr std::array kUnits{"KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes) / 1024.0;
  std::size_t unit = 0;
  // 1023.95 would print as 1024.0 of the smaller unit.
  while (value >= 1023.95 && unit + 1 < kUnits.size()) {
    value /= 1024.0;
    ++unit;
  }
  return fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string format_duration(double seconds) {
  const auto whole = static_cast<std::int64_t>(std::llround(std::max(seconds, 0.0)));
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  const std::int64_t minutes = whole / 60;
  return fmt::format("{} h {:02} min", minutes / 60, minutes % 60);
}

std::string format_count(std::uint64_t count) {
  const std::string digits = fmt::format("{}", count);
  std::string text;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

std::string format_rate(std::size_t tokens, double seconds) {
  if (tokens == 0 || seconds <= 0.0) return "-";
  return fmt::format("{:.1f}", static_cast<double>(tokens) / seconds);
}

std::string format_ratio(std::uint64_t full, std::uint64_t held) {
  if (held == 0) return "-";
  return fmt::format("{:.2f}x", static_cast<double>(full) / static_cast<double>(held));
}

std::string in_quotes(std::string_view text) {
  std::string out = "'";
  while (!text.empty()) {
    const std::size_t valid = std::min(find_invalid_utf8(text), text.size());
    for (const char c : text.substr(0, valid)) {
      const auto byte = static_cast<unsigned char>(c);
      if (c == '\n') {
        out += "\\n";
      } else if (c == '\t') {
        out += "\\t";
      } else if (c == '\'' || c == '\\') {
        out += {'\\', c};
      } else if (byte < 0x20 || byte == 0x7f) {
        out += fmt::format("\\x{:02x}", byte);
      } else {
        out += c;
      }
    }
    text.remove_prefix(valid);
    if (text.empty()) break;
    out += fmt::format("\\x{:02x}", static_cast<unsigned char>(text.front()));
    text.remove_prefix(1);
  }
  return out + "'";
}

}  // namespace kvspan::cli
