// SPDX-License-Identifier: Apache-2.0
// Text the user hands over: on the command line, in a file, or through standard input.
#pragma once

#include <string>
#include <string_view>

#include "kvspan/result.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace kvspan::cli {

struct TextFlags {
  std::string text;
  std::string file;  // "-": standard input
  CLI::Option* text_option = nullptr;
  CLI::Option* file_option = nullptr;
};

// `text_names` are those of the option that takes the text itself ("-p,--prompt", or a positional).
void add_text_flags(CLI::App& app, TextFlags& flags, const std::string& text_names);

enum class LastNewline {
  kKeep,
  kDrop,  // of a file or standard input, as llama.cpp does: editors and echo add one
};
// The text, not empty, valid UTF-8, without NUL; an error names its source.
Result<std::string> read_text(const TextFlags& flags, LastNewline last_newline);

// Fails, naming `source` and the byte, on invalid UTF-8 and on NUL.
Status check_text(std::string_view text, std::string_view source);
// `text` with every byte that is not part of valid UTF-8 replaced by U+FFFD.
std::string mended_utf8(std::string_view text);

}  // namespace kvspan::cli
