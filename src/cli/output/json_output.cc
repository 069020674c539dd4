// SPDX-License-Identifier: Apache-2.0
#include "cli/output/json_output.h"

#include <chrono>
#include <cstdio>
#include <filesystem>

#include "base/cpu_level.h"
#include "base/fail.h"
#include "cli/version.h"
#include "io/atomic_file.h"
#include "io/machine.h"

namespace kvspan::cli {
namespace {

struct CommandLine {
  std::string command;
  std::vector<std::string> arguments;
};
CommandLine& command_line() {
  static CommandLine line;
  return line;
}

// In UTC: 2026-01-31.
std::string today() {
  const std::chrono::year_month_day date(
      std::chrono::floor<std::chrono::days>(std::chrono::system_clock::now()));
  return fmt::format("{:04}-{:02}-{:02}", static_cast<int>(date.year()),
                     static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()));
}

}  // namespace

void set_command_line(std::string command, std::vector<std::string> arguments) {
  command_line() = {std::move(command), std::move(arguments)};
}

Json document_head() {
  const Machine machine = describe_machine();
  const std::string version = version_text();
  return Json{{"command", command_line().command},
              {"arguments", command_line().arguments},
              {"version", version.substr(0, version.find('\n'))},
              {"date", today()},
              {"machine",
               {{"cpu", machine.cpu},
                {"cores", machine.cores},
                {"cpu_level", std::string(name_of(cpu_level()))},
                {"system", machine.system}}}};
}

Status check_json_target(const std::string& target) {
  if (target.empty() || target == "-") return {};
  const std::filesystem::path path(target);
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    return fail(ErrorCode::kInvalidArgument, "--json: '{}' is a folder", target);
  }
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : ".";
  if (!std::filesystem::is_directory(folder, ignored)) {
    return fail(ErrorCode::kNotFound, "--json: there is no folder '{}'", folder.string());
  }
  return {};
}

Status write_json(const Json& json, const std::string& target) {
  if (target.empty()) return {};
  Json document = json;
  if (json.is_object()) {
    document = document_head();
    document.update(json);
  }
  const std::string text = document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
  if (target != "-") return write_file(target, text);
  std::fwrite(text.data(), 1, text.size(), stdout);  // the program checks stdout when it ends
  return {};
}

Result<Json> read_json(const std::string& path) {
  KVSPAN_TRY(const auto bytes, read_file(path));
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  Json json = Json::parse(text, nullptr, false);
  if (json.is_discarded()) return fail(ErrorCode::kCorruptData, "'{}' is not JSON", path);
  return json;
}

std::optional<std::string> first_difference(const Json& before, const Json& now) {
  for (const auto& [key, value] : now.items()) {
    const Json old = before.is_object() && before.contains(key) ? before[key] : Json();
    if (old != value) return fmt::format("{} ({}, now {})", key, old.dump(), value.dump());
  }
  return std::nullopt;
}

Json ratio_or_null(double numerator, double denominator) {
  if (numerator <= 0.0 || denominator <= 0.0) return nullptr;
  return numerator / denominator;
}

}  // namespace kvspan::cli
