// SPDX-License-Identifier: Apache-2.0
// Flags of several letters after one dash, as llama.cpp has them (-hf, -ngl): each stands for a
// long one. The parser underneath would read them as several flags of one letter.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace kvspan::cli {

// `arguments` with every such flag that the chosen command of `program` knows in its long form.
// Values of other flags stay as they are, whatever they look like.
std::vector<std::string> with_long_flags(const CLI::App& program,
                                         std::vector<std::string> arguments);

// The first argument that begins with one dash, has several letters and is no flag of the chosen
// command; "": none. The parser underneath would take "-hg" for "-h", and "-ngk" for "-n gk".
std::string unknown_letters(const CLI::App& program, const std::vector<std::string>& arguments);

// Those of one command, "-hf" and so on, for hints.
std::vector<std::string> short_flags_of(const CLI::App& command);

}  // namespace kvspan::cli
