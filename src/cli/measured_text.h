// SPDX-License-Identifier: Apache-2.0
// The text that measurements read: a file the user names, else the demo text that comes with
// kvspan.
#pragma once

#include <string>
#include <vector>

#include "llama/tokenizer.h"

namespace CLI {
class App;
}

namespace kvspan::cli {

void add_measured_text_flag(CLI::App& app, std::string& file);

// What is to be read: `file`, or the demo text.
struct MeasuredText {
  std::string path, text;
};
Result<MeasuredText> read_measured_text(const std::string& file);

// Exactly `count` tokens: the text's first, repeated where it is shorter.
Result<std::vector<Token>> measured_tokens(const std::string& model_path, const std::string& file,
                                           std::size_t count);

}  // namespace kvspan::cli
