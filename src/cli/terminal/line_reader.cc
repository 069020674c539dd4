// SPDX-License-Identifier: Apache-2.0
#include "cli/terminal/line_reader.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "cli/terminal/interrupt.h"
#include "cli/terminal/terminal.h"

namespace kvspan::cli {
namespace {

class PlainReader final : public LineReader {
 public:
  Line read(const std::string& prompt) override {
    if (isatty(0) == 1) {
      const std::string shown = styled(prompt, Style::kGreen, describe_terminal(2));
      fmt::print(stderr, "{}", shown);
      std::fflush(stderr);
    }
    for (;;) {
      if (const std::size_t end = pending_.find('\n'); end != std::string::npos) {
        Line line{Kind::kText, pending_.substr(0, end)};
        pending_.erase(0, end + 1);
        if (line.text.ends_with('\r')) line.text.pop_back();
        return line;
      }
      if (!wait_readable(0)) return {Kind::kInterrupted, std::exchange(pending_, {})};
      std::array<char, 4096> block;
      const ssize_t got = ::read(0, block.data(), block.size());
      if (got > 0) {
        pending_.append(block.data(), static_cast<std::size_t>(got));
      } else if (got < 0 && errno == EINTR) {
        continue;
      } else if (pending_.empty()) {
        return {};
      } else {  // the last line of a file without a line break
        return {Kind::kText, std::exchange(pending_, {})};
      }
    }
  }
  void remember(const std::string&) override {}

 private:
  std::string pending_;
};

}  // namespace

std::unique_ptr<LineReader> make_line_reader(const std::string& history) {
  if (isatty(0) == 1 && isatty(2) == 1) {
    if (auto reader = detail::make_editing_reader(history)) return reader;
  }
  return std::make_unique<PlainReader>();
}

}  // namespace kvspan::cli
