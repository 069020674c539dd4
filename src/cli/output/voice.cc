// SPDX-License-Identifier: Apache-2.0
#include "cli/output/voice.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>

#include "cli/flags.h"

namespace kvspan::cli {
namespace {

Voice current_voice = Voice::kNormal;
ProgressStyle current_style = ProgressStyle::kAuto;

bool has_flag(const CLI::App& app, const std::string& name) {
  return app.get_option_no_throw(name) != nullptr;
}

// The names that are still free, joined for CLI11; "" where none is.
std::string free_names(const CLI::App& app, const std::string& letter, const std::string& word) {
  std::string names;
  if (!has_flag(app, letter)) names = letter;
  if (!has_flag(app, word)) names += (names.empty() ? "" : ",") + word;
  return names;
}

void print(std::string_view text) {
  std::fflush(stdout);
  fmt::print(stderr, "{}", text);
}

}  // namespace

Voice voice() noexcept {
  return current_voice;
}

ProgressStyle progress_style() noexcept {
  return current_style;
}

std::string progress_name() {
  switch (current_style) {
    case ProgressStyle::kBar:
      return "bar";
    case ProgressStyle::kPlain:
      return "plain";
    case ProgressStyle::kNone:
      return "none";
    case ProgressStyle::kAuto:
      break;
  }
  return "";
}

void set_voice(Voice voice, ProgressStyle style) noexcept {
  current_voice = voice;
  current_style = style;
}

void add_voice_flags(CLI::App& app) {
  const std::string quiet = free_names(app, "-q", "--quiet");
  const std::string verbose = free_names(app, "-v", "--verbose");
  if (!quiet.empty()) {
    app.add_flag_callback(
        quiet, [] { set_voice(Voice::kQuiet, ProgressStyle::kNone); },
        "Say nothing but results and errors");
  }
  if (!verbose.empty()) {
    app.add_flag_callback(
        verbose, [] { set_voice(Voice::kVerbose, current_style); },
        "Say more, and what libllama says");
  }
  if (has_flag(app, "--progress")) return;
  app.add_option_function<std::string>(
         "--progress",
         [](const std::string& word) {
           set_voice(current_voice, word == "bar"     ? ProgressStyle::kBar
                                    : word == "plain" ? ProgressStyle::kPlain
                                                      : ProgressStyle::kNone);
         },
         "How long work shows that it goes on; default: a bar on a terminal, else lines")
      ->check(
          [](const std::string& word) {
            return word == "bar" || word == "plain" || word == "none"
                       ? std::string()
                       : fmt::format("'{}' is not allowed; allowed: bar, plain, none", word);
          },
          "")
      ->type_name("bar|plain|none");
}

void say(std::string_view text) {
  if (current_voice != Voice::kQuiet) print(text);
}

void say_details(std::string_view text) {
  if (current_voice == Voice::kVerbose) print(text);
}

}  // namespace kvspan::cli
