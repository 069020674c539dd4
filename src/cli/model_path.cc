// SPDX-License-Identifier: Apache-2.0
#include "cli/model_path.h"

#include <algorithm>
#include <vector>

#include "base/fail.h"
#include "base/spelling.h"
#include "cli/output/voice.h"
#include "io/models.h"
#include "llama/hub_cache.h"

namespace kvspan::cli {

Result<std::string> fetch_hub_model(const std::string& name, bool again) {
  HubModel model;
  const std::string rest = name.substr(kHubPrefix.size());
  const std::size_t hash = rest.find('#');
  model.name = rest.substr(0, hash);
  if (hash != std::string::npos) model.file = rest.substr(hash + 1);
  if (!again) {
    KVSPAN_TRY(std::string path, find_hub_model(model.name, model.file));
    if (!path.empty()) return path;
  }
  KVSPAN_TRY(model.folder, hub_cache_folder());
  return pull_hub_model(model, {.endpoint = hub_endpoint(), .progress = progress_name()});
}

Result<std::string> find_model_path(const std::string& name_or_path) {
  if (name_or_path.starts_with(kHubPrefix)) return fetch_hub_model(name_or_path);
  auto path = resolve_model(name_or_path);
  if (path || name_or_path.find('/') != std::string::npos || name_or_path.ends_with(".gguf")) {
    return path;
  }
  KVSPAN_TRY(const auto models, list_models());
  std::vector<std::string> names;
  for (const ModelFile& model : models) names.push_back(model.name);
  if (std::find(names.begin(), names.end(), name_or_path) != names.end()) return path;
  const std::string hint = did_you_mean(name_or_path, names);
  if (hint.empty()) return path;
  return fail(ErrorCode::kNotFound, "no model is called '{}'{} (kvspan pull lists them)",
              name_or_path, hint);
}

}  // namespace kvspan::cli
