// SPDX-License-Identifier: Apache-2.0
// kvspan pull: models by name.
#include <algorithm>

#include "base/fail.h"
#include "base/spelling.h"
#include "cli/command.h"
#include "cli/flags.h"
#include "cli/model_path.h"
#include "cli/output/format.h"
#include "cli/output/json_output.h"
#include "cli/output/table.h"
#include "cli/output/voice.h"
#include "io/models.h"
#include "llama/hub_cache.h"

namespace kvspan::cli {
namespace {

struct PullFlags {
  std::string name;
  std::string json;
  bool force = false;
};

std::vector<std::string> names_of(const std::vector<ModelFile>& models) {
  std::vector<std::string> names;
  for (const ModelFile& model : models) names.push_back(model.name);
  return names;
}

Status list(const PullFlags& flags, const std::vector<ModelFile>& models) {
  Table table({{"name"}, {"model"}, {"size", Table::Align::kRight}, {"licence"}, {"present"}});
  Json rows = Json::array();
  for (const ModelFile& model : models) {
    table.add_row({model.name, model.title, format_bytes(model.bytes), model.licence,
                   model.present ? "yes" : "no"});
    rows.push_back({{"name", model.name},
                    {"title", model.title},
                    {"licence", model.licence},
                    {"bytes", model.bytes},
                    {"download_bytes", model.download_bytes},
                    {"present", model.present},
                    {"path", model.path}});
  }
  KVSPAN_CHECK_OK(write_json(rows, flags.json));
  if (flags.json != "-") fmt::print("{}", table.text());
  return {};
}

Result<int> pull(const PullFlags& flags) {
  KVSPAN_CHECK_OK(check_json_target(flags.json));
  KVSPAN_TRY(const auto models, list_models());
  if (flags.name.empty()) {
    KVSPAN_CHECK_OK(list(flags, models));
    return 0;
  }
  if (flags.name.starts_with(kHubPrefix)) {
    KVSPAN_TRY(const std::string path, fetch_hub_model(flags.name, flags.force));
    fmt::print("{}\n", path);
    return 0;
  }
  const std::vector<std::string> names = names_of(models);
  if (std::find(names.begin(), names.end(), flags.name) == names.end()) {
    return fail(ErrorCode::kNotFound, "no model is called '{}'{}", flags.name,
                nearest(flags.name, names)
                    ? did_you_mean(flags.name, names)
                    : fmt::format("; there are: {}", fmt::join(names, ", ")));
  }
  KVSPAN_TRY(const std::string path, pull_model(flags.name, {.again = flags.force, .endpoint = hub_endpoint(), .progress = progress_name()}));
  fmt::print("{}\n", path);
  return 0;
}

}  // namespace

Action setup_pull(CLI::App& app) {
  auto flags = std::make_shared<PullFlags>();
  const auto models = list_models();
  add_text(app, "name", flags->name, "Model to fetch; without a name, those there are are listed",
           models ? fmt::format("{}", fmt::join(names_of(*models), "|")) : "NAME");
  add_hub_flags(app, flags->name);
  exclude_each_other(app, "--hf-repo", "name");
  add_switch(app, "--force", flags->force, "Fetch it even if it is there");
  add_json_flag(app, flags->json);
  set_footer(app,
             "Examples:\n"
             "  kvspan pull\n"
             "  kvspan pull smollm2\n"
             "  kvspan pull -hf USER/REPO:Q4_K_M\n");
  return [flags] { return pull(*flags); };
}

}  // namespace kvspan::cli
