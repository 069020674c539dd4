// SPDX-License-Identifier: Apache-2.0
// kvspan list: the models that are on this machine.
#include <filesystem>

#include "base/fail.h"
#include "cli/command.h"
#include "cli/flags.h"
#include "cli/model_path.h"
#include "cli/output/format.h"
#include "cli/output/json_output.h"
#include "cli/output/table.h"
#include "io/models.h"
#include "io/user_folders.h"
#include "llama/file_fingerprint.h"
#include "llama/hub_cache.h"

namespace kvspan::cli {
namespace {

struct ListFlags {
  std::string json;
};

struct Present {
  std::string name, path;
};

Result<std::vector<Present>> present_models() {
  std::vector<Present> all;
  KVSPAN_TRY(const auto models, list_models());
  for (const ModelFile& model : models) {
    if (model.present) all.push_back({model.name, model.path});
  }
  KVSPAN_TRY(const auto names, list_hub_models());
  for (const std::string& name : names) {
    KVSPAN_TRY(const std::string path, find_hub_model(name));
    if (!path.empty()) all.push_back({std::string(kHubPrefix) + name, path});
  }
  return all;
}

// Whether its directions have been learned.
bool is_calibrated(const std::string& path) {
  const auto fingerprint = file_fingerprint(path);
  const auto folder = user_cache_folder();
  if (!fingerprint || !folder) return false;
  std::error_code ignored;
  return std::filesystem::exists(fmt::format("{}/calibration/{}.gguf", *folder, *fingerprint),
                                 ignored);
}

Result<int> list(const ListFlags& flags) {
  KVSPAN_CHECK_OK(check_json_target(flags.json));
  KVSPAN_TRY(const auto models, present_models());
  Table table({{"name"}, {"size", Table::Align::kRight}, {"calibrated"}, {"file"}});
  Json rows = Json::array();
  for (const Present& model : models) {
    std::error_code ignored;
    const std::uintmax_t bytes = std::filesystem::file_size(model.path, ignored);
    const bool calibrated = is_calibrated(model.path);
    table.add_row(
        {model.name, ignored ? "?" : format_bytes(bytes), calibrated ? "yes" : "no", model.path});
    rows.push_back({{"name", model.name},
                    {"bytes", ignored ? Json() : Json(bytes)},
                    {"calibrated", calibrated},
                    {"path", model.path}});
  }
  KVSPAN_CHECK_OK(write_json(rows, flags.json));
  if (flags.json != "-") fmt::print("{}", table.text());
  return 0;
}

}  // namespace

Action setup_list(CLI::App& app) {
  auto flags = std::make_shared<ListFlags>();
  add_json_flag(app, flags->json);
  set_footer(app,
             "The names are what -m takes; kvspan pull shows those that could be fetched.\n"
             "Examples:\n"
             "  kvspan list\n"
             "  kvspan list --json -\n");
  return [flags] { return list(*flags); };
}

}  // namespace kvspan::cli
