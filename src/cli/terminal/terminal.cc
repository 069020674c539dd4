// SPDX-License-Identifier: Apache-2.0
#include "cli/terminal/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>

namespace kvspan::cli {
namespace {

std::string_view environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string_view() : value;
}

bool begins_character(char byte) {
  return (static_cast<unsigned char>(byte) & 0xc0) != 0x80;
}

}  // namespace

Terminal describe_terminal(int fd) {
  Terminal terminal;
  terminal.is_terminal = isatty(fd) == 1;
  if (!terminal.is_terminal) return terminal;
  terminal.colours = environment("NO_COLOR").empty() && environment("TERM") != "dumb";
  struct winsize size {};
  if (ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) terminal.width = size.ws_col;
  return terminal;
}

std::string styled(std::string_view text, Style style, const Terminal& terminal) {
  if (!terminal.colours) return std::string(text);
  const char* code = "";
  switch (style) {
    case Style::kBold:
      code = "\033[1m";
      break;
    case Style::kDim:
      code = "\033[2m";
      break;
    case Style::kRed:
      code = "\033[31m";
      break;
    case Style::kGreen:
      code = "\033[32m";
      break;
  }
  return code + std::string(text) + "\033[0m";
}

std::size_t display_width(std::string_view text) noexcept {
  std::size_t width = 0;
  for (const char byte : text) width += begins_character(byte);
  return width;
}

std::string fit_width(std::string_view text, std::size_t columns) {
  if (display_width(text) <= columns) return std::string(text);
  const std::size_t dots = columns < 4 ? 0 : 3;
  std::size_t end = 0;
  for (std::size_t shown = 0; end < text.size(); ++end) {
    if (begins_character(text[end]) && ++shown > columns - dots) break;
  }
  return std::string(text.substr(0, end)) + std::string(dots, '.');
}

}  // namespace kvspan::cli
