// SPDX-License-Identifier: Apache-2.0
// How much the program says on standard error: -q, -v and --progress, for all commands.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace CLI {
class App;
}

namespace kvspan::cli {

enum class Voice {
  kQuiet,    // results and errors
  kNormal,   // and numbers, and what the user should know
  kVerbose,  // and how they came about
};
enum class ProgressStyle {
  kAuto,  // a bar on a terminal, lines elsewhere
  kBar,
  kPlain,  // lines
  kNone,
};

// Of the whole program.
Voice voice() noexcept;
ProgressStyle progress_style() noexcept;
// The style as --progress names it; "" for kAuto.
std::string progress_name();
void set_voice(Voice voice, ProgressStyle style) noexcept;

// -q, -v, --progress; those names that the command has of its own stay its own. Parsing sets the
// voice.
void add_voice_flags(CLI::App& app);

// On standard error, unless -q was given.
void say(std::string_view text);
// The same, only with -v.
void say_details(std::string_view text);

}  // namespace kvspan::cli
