// SPDX-License-Identifier: Apache-2.0
// What one output stream can show.
#pragma once

#include <string>
#include <string_view>

namespace kvspan::cli {

struct Terminal {
  bool is_terminal = false;
  bool colours = false;  // a terminal, TERM is not "dumb" and NO_COLOR is unset or empty
  int width = 80;        // columns
};

// Asks about file descriptor `fd` (1: results, 2: everything else).
Terminal describe_terminal(int fd);

enum class Style { kBold, kDim, kRed, kGreen };
// `text` in a style where the stream shows colours, else `text` as it is.
std::string styled(std::string_view text, Style style, const Terminal& terminal);

// Columns that UTF-8 text takes, one a character (double-width characters count once); bytes that
// are not UTF-8 take one each.
std::size_t display_width(std::string_view text) noexcept;
// The first characters of `text` that fit `columns`; a text that is cut ends in "...". For fewer
// than four columns the dots are left out.
std::string fit_width(std::string_view text, std::size_t columns);

}  // namespace kvspan::cli
