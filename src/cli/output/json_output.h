// SPDX-License-Identifier: Apache-2.0
// Where --json goes: "-" is standard output, anything else a file that appears complete or not at
// all.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "kvspan/result.h"

namespace kvspan::cli {

// Keys keep the order they were written in.
using Json = nlohmann::ordered_json;

// Before long work: whether the folder of `target` is there. Empty and "-" are always fine.
Status check_json_target(const std::string& target);

// What every document says of itself, once the program knows: `command` is the subcommand ("eval
// ppl"), `arguments` what was typed after the program's name.
void set_command_line(std::string command, std::vector<std::string> arguments);
// "command", "arguments", "version" and "machine" (cpu, cores, cpu_level, system).
Json document_head();

// An object gets document_head() in front, where it does not have these keys itself. Bytes that are
// not UTF-8 become U+FFFD. Nothing happens for an empty target.
Status write_json(const Json& json, const std::string& target);

// Fails on a file that is not JSON, naming it.
Result<Json> read_json(const std::string& path);

// The first key of `now` that `before` has not, or has with another value: "seed (0, now 1)".
std::optional<std::string> first_difference(const Json& before, const Json& now);

// A ratio of measurements; null when nothing was measured.
Json ratio_or_null(double numerator, double denominator);

}  // namespace kvspan::cli
