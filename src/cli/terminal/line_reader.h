// SPDX-License-Identifier: Apache-2.0
// Lines the user types: edited, with a history that is kept from one session to the next, where
// standard input is a terminal (libedit; what is pasted is one piece, line breaks and all); plain
// lines where it is a pipe or libedit is missing. Prompt and echo go to standard error.
#pragma once

#include <memory>
#include <string>

namespace kvspan::cli {

class LineReader {
 public:
  enum class Kind {
    kText,
    kInterrupted,  // Ctrl-C; `text` is what had been typed
    kEnd,          // Ctrl-D or end of file
  };
  struct Line {
    Kind kind = Kind::kEnd;
    std::string text;  // without its line break; pasted ones are kept
    int keys = 0;      // how many were pressed, where the line was edited
  };

  virtual ~LineReader() = default;
  // The prompt is plain text; a terminal shows it in colour where it can.
  virtual Line read(const std::string& prompt) = 0;
  // Offers `line` to the arrow keys from now on.
  virtual void remember(const std::string& line) = 0;
};

// `history` is the file of the history; empty: none is kept. Interrupts have to be caught
// (cli/terminal/interrupt.h) for kInterrupted to be seen.
std::unique_ptr<LineReader> make_line_reader(const std::string& history);

namespace detail {
// Null when libedit cannot serve this terminal.
std::unique_ptr<LineReader> make_editing_reader(const std::string& history);
}  // namespace detail

}  // namespace kvspan::cli
