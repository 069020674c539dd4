// SPDX-License-Identifier: Apache-2.0
// kvspan cache: what is kept in the user's cache folder that can be made again.
#include <CLI/CLI.hpp>
#include <cstdint>
#include <ctime>
#include <vector>

#include "base/fail.h"
#include "cli/command.h"
#include "cli/flags.h"
#include "cli/output/format.h"
#include "cli/output/json_output.h"
#include "cli/output/table.h"
#include "eval/kept_codes.h"
#include "io/user_folders.h"

namespace kvspan::cli {
namespace {

struct CacheFlags {
  std::string json;
  bool calibrations = false;
};

struct Kept {
  const char* what;
  BoundedFolder folder;
};

Result<std::vector<Kept>> kept_folders() {
  KVSPAN_TRY(const std::string root, user_cache_folder());
  KVSPAN_TRY(const BoundedFolder codes, codes_folder());
  return std::vector<Kept>{{"calibration", BoundedFolder(root + "/calibration", SIZE_MAX)},
                           {"codes", codes}};
}

std::string day_of(std::int64_t seconds) {
  const auto when = static_cast<std::time_t>(seconds);
  std::tm local{};
  localtime_r(&when, &local);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M", &local);
  return text;
}

Result<int> list(const CacheFlags& flags) {
  KVSPAN_CHECK_OK(check_json_target(flags.json));
  KVSPAN_TRY(const auto folders, kept_folders());
  Json json{{"files", Json::array()}};
  Table table({{"kind"}, {"bytes", Table::Align::kRight}, {"last used"}, {"file"}});
  std::size_t bytes = 0, files = 0;
  for (const Kept& kept : folders) {
    for (const BoundedFolder::File& file : kept.folder.files()) {
      json["files"].push_back({{"kind", kept.what},
                               {"path", kept.folder.path_of(file.name)},
                               {"bytes", file.bytes},
                               {"used", file.used}});
      table.add_row(
          {kept.what, format_count(file.bytes), day_of(file.used), kept.folder.path_of(file.name)});
      bytes += file.bytes;
      ++files;
    }
  }
  json["bytes"] = bytes;
  KVSPAN_CHECK_OK(write_json(json, flags.json));
  if (flags.json == "-") return 0;
  if (files > 0) fmt::print("{}", table.text());
  fmt::print("{} files, {}\n", files, format_bytes(bytes));
  return 0;
}

Result<int> clean(const CacheFlags& flags) {
  KVSPAN_TRY(const auto folders, kept_folders());
  for (const Kept& kept : folders) {
    if (std::string_view(kept.what) == "calibration" && !flags.calibrations) continue;
    std::size_t bytes = 0;
    for (const auto& file : kept.folder.files()) bytes += file.bytes;
    KVSPAN_TRY(const std::size_t removed, kept.folder.clean());
    fmt::print("{}: {} files removed, {}\n", kept.what, removed, format_bytes(bytes));
  }
  return 0;
}

}  // namespace

Action setup_cache(CLI::App& app) {
  auto flags = std::make_shared<CacheFlags>();
  app.require_subcommand(1, 1);
  CLI::App* lists = app.add_subcommand("list", "List calibrations and codes that are kept");
  add_json_flag(*lists, flags->json);
  set_footer(*lists, "Example:\n  kvspan cache list\n");
  CLI::App* cleans =
      app.add_subcommand("clean", "Remove codes, which the next start designs again");
  add_switch(*cleans, "--calibrations", flags->calibrations,
             "Remove calibrations too; making them again takes minutes");
  set_footer(*cleans, "Example:\n  kvspan cache clean\n");
  set_footer(app,
             "Codes are designed from a calibration the first time that a recipe is used, and "
             "kept: at most\n"
             "1 GiB, of which what was not used for longest goes first.\n"
             "Examples:\n  kvspan cache list\n  kvspan cache clean\n");
  return [flags, lists] { return lists->parsed() ? list(*flags) : clean(*flags); };
}

}  // namespace kvspan::cli
