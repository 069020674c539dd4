// SPDX-License-Identifier: Apache-2.0
#include "cli/model_path.h"

#include <algorithm>
#include <vector>

#include "base/fail.h"
#include "base/spelling.h"
#include "io/models.h"

namespace kvspan::cli {

Result<std::string> find_model_path(const std::string& name_or_path) {
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
