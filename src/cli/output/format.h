// SPDX-License-Identifier: Apache-2.0
// Numbers as people read them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace kvspan::cli {

// "0 B", "1023 B", "22.5 KiB", "93.8 MiB": powers of 1024, one decimal.
std::string format_bytes(std::uint64_t bytes);
// "3 s", "1 min 05 s", "2 h 03 min"; rounded, never negative.
std::string format_duration(double seconds);
// "23,040": groups of three.
std::string format_count(std::uint64_t count);
// "151.3"; "-" when `seconds` or `tokens` is 0, because nothing was measured.
std::string format_rate(std::size_t tokens, double seconds);
// "7.9x"; "-" when `held` is 0.
std::string format_ratio(std::uint64_t full, std::uint64_t held);
// In single quotes, on one line: control characters and bytes that are not UTF-8 become \n, \t or
// \xNN, quote and backslash are escaped.
std::string in_quotes(std::string_view text);

}  // namespace kvspan::cli
