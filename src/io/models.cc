// SPDX-License-Identifier: Apache-2.0
#include "io/models.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "base/fail.h"
#include "io/embedded.h"
#include "io/process.h"
#include "io/user_folders.h"

namespace kvspan {
namespace {

namespace fs = std::filesystem;

bool has_length(const std::string& path, std::uint64_t bytes) {
  std::error_code error;
  return fs::is_regular_file(path, error) && fs::file_size(path, error) == bytes && !error;
}

// Folders of models that come with kvspan: beside an installed program, then in the source tree.
std::vector<std::string> bundled_folders() {
  std::vector<std::string> folders;
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (!error) {
    folders.push_back((program.parent_path() / KVSPAN_INSTALLED_MODELS).lexically_normal());
  }
  folders.emplace_back(KVSPAN_SOURCE_MODELS);
  return folders;
}

std::string place_of(const std::string& file, const ModelFile& model, const std::string& pulled) {
  if (model.download_bytes > 0) return pulled + "/" + file;
  const std::vector<std::string> folders = bundled_folders();
  for (const std::string& folder : folders) {
    std::string path = folder + "/" + file;
    if (has_length(path, model.bytes)) return path;
  }
  return folders.back() + "/" + file;
}

Result<std::string> pulled_folder() {
  KVSPAN_TRY(const std::string cache, user_cache_folder());
  return cache + "/models";
}

std::string known_names(const std::vector<ModelFile>& models) {
  std::string names;
  for (const ModelFile& model : models) names += (names.empty() ? "" : ", ") + model.name;
  return names;
}

Result<ModelFile> find_model(std::string_view name) {
  KVSPAN_TRY(std::vector<ModelFile> models, list_models());
  const auto found =
      std::find_if(models.begin(), models.end(), [&](const auto& m) { return m.name == name; });
  if (found != models.end()) return std::move(*found);
  return fail(ErrorCode::kNotFound,
              "no model is called '{}'; known are {}, or give the path of a .gguf file", name,
              known_names(models));
}

// Runs scripts/pull.py and returns the path that it prints. `refused`: the code of its own refusals.
Result<std::string> run_pull(std::vector<std::string> arguments, const PullOptions& options, ErrorCode refused) {
  arguments.insert(arguments.begin(), {"python3", "-c", detail::kPullScript});
  arguments.insert(arguments.end(), {"--endpoint", options.endpoint, "--machine"});
  if (!options.progress.empty()) arguments.insert(arguments.end(), {"--progress", options.progress});
  auto run = run_process(arguments);
  if (!run && run.error().code == ErrorCode::kNotFound) {
    return fail(ErrorCode::kNotFound, "python3 is needed to fetch models and is not installed");
  }
  KVSPAN_TRY(const ProcessEnd end, std::move(run));
  std::string line = end.output;
  while (line.ends_with('\n')) line.pop_back();
  line.erase(0, line.rfind('\n') + 1);
  if (end.exit_code == 0) return line;
  if (line.empty()) line = fmt::format("python3 ended with {}", end.exit_code);
  if (end.exit_code == 130) return fail(ErrorCode::kCancelled, "{}", line);
  return fail(end.exit_code == 2 ? refused : ErrorCode::kIo, "{}", line);
}

}  // namespace

Result<std::vector<ModelFile>> list_models() {
  const auto catalogue = nlohmann::json::parse(detail::kModelCatalogue, nullptr, false);
  if (catalogue.is_discarded()) return fail(ErrorCode::kCorruptData, "data/models.json: not JSON");
  // Without a home nothing can have been pulled; what comes with kvspan is there all the same.
  const auto folder = pulled_folder();
  const std::string pulled = folder ? *folder : "";
  std::vector<ModelFile> models;
  for (const auto& entry : catalogue["models"]) {
    ModelFile model;
    model.name = entry["name"];
    model.title = entry["title"];
    model.licence = entry["licence"];
    model.bytes = entry["bytes"];
    for (const auto& part : entry["parts"]) {
      model.download_bytes += part["bytes"].get<std::uint64_t>();
    }
    model.path = place_of(entry["file"], model, pulled);
    model.present = has_length(model.path, model.bytes);
    models.push_back(std::move(model));
  }
  return models;
}

Result<std::string> resolve_model(std::string_view name_or_path) {
  const bool is_path =
      name_or_path.find('/') != std::string_view::npos || name_or_path.ends_with(".gguf");
  if (is_path) {
    std::string path(name_or_path);
    std::error_code error;
    if (fs::is_regular_file(path, error)) return path;
    return fail(ErrorCode::kNotFound, "there is no model file at '{}'", path);
  }
  KVSPAN_TRY(ModelFile model, find_model(name_or_path));
  if (model.present) return std::move(model.path);
  if (model.download_bytes == 0) {
    return fail(ErrorCode::kNotFound, "'{}' should come with kvspan but is not at '{}'", model.name,
                model.path);
  }
  return fail(ErrorCode::kNotFound, "'{}' is not here yet: `kvspan pull {}` fetches it ({:.0f} MB)",
              model.name, model.name, static_cast<double>(model.download_bytes) / 1e6);
}

Result<std::string> pull_model(std::string_view name, const PullOptions& options) {
  KVSPAN_TRY(ModelFile model, find_model(name));
  if (model.present && (!options.again || model.download_bytes == 0)) return std::move(model.path);
  if (model.download_bytes == 0) return resolve_model(name);
  KVSPAN_TRY(const std::string folder, pulled_folder());
  std::vector<std::string> arguments = {"model", model.name, "--into", folder, "--catalogue-json", detail::kModelCatalogue};
  if (options.again) arguments.emplace_back("--again");
  return run_pull(std::move(arguments), options, ErrorCode::kIo);
}

Result<std::string> pull_hub_model(const HubModel& model, const PullOptions& options) {
  std::vector<std::string> arguments = {"hub", model.name, "--cache", model.folder};
  if (!model.file.empty()) arguments.insert(arguments.end(), {"--file", model.file});
  return run_pull(std::move(arguments), options, ErrorCode::kInvalidArgument);
}

Status remove_model(std::string_view name) {
  KVSPAN_TRY(const ModelFile model, find_model(name));
  if (model.download_bytes == 0) {
    return fail(ErrorCode::kInvalidArgument, "'{}' comes with kvspan and is not removed",
                model.name);
  }
  std::error_code error;
  if (!fs::remove(model.path, error) && !error) {
    return fail(ErrorCode::kNotFound, "'{}' is not here", model.name);
  }
  if (error) return fail(ErrorCode::kIo, "cannot remove '{}': {}", model.path, error.message());
  return {};
}

}  // namespace kvspan
