// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/study_folder.h"

#include <filesystem>

#include "base/fail.h"
#include "cli/output/study_json.h"
#include "io/atomic_file.h"
#include "io/sha256.h"

namespace kvspan::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kUnitFormat = "kvspan-study-unit";

Status make_folder(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (!error) return {};
  return fail(ErrorCode::kInvalidArgument, "-o: cannot make the folder '{}': {}", path,
              error.message());
}

Status remove_units(const std::string& path) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(path + "/units", error)) {
    if (entry.path().extension() == ".json") fs::remove(entry.path(), error);
    if (error) break;
  }
  if (!error) return {};
  return fail(ErrorCode::kIo, "cannot empty '{}/units': {}", path, error.message());
}

}  // namespace

std::string checksum_of(const std::vector<StudyUnit>& plan) {
  Sha256 sum;
  const auto add = [&](const std::string& text) {
    sum.add(std::as_bytes(std::span(text.c_str(), text.size() + 1)));  // with its end
  };
  for (const StudyUnit& unit : plan) {
    add(unit.name);
    for (const PlannedRecipe& planned : unit.recipes) {
      for (const std::string& text :
           {planned.group, planned.label, planned.recipe, planned.family}) {
        add(text);
      }
    }
  }
  return sum.finish();
}

Result<StudyFolder> StudyFolder::open(const std::string& path, const Json& settings, bool restart) {
  StudyFolder folder(path);
  KVSPAN_CHECK_OK(make_folder(path + "/units"));
  const std::string file = folder.file("settings.json");
  if (restart) KVSPAN_CHECK_OK(remove_units(path));
  std::error_code ignored;
  if (!restart && fs::exists(file, ignored)) {
    KVSPAN_TRY(const Json before, read_json(file));
    if (const auto difference = first_difference(before, settings)) {
      return fail(ErrorCode::kInvalidArgument,
                  "'{}' holds a study with another {}; --restart begins anew", path, *difference);
    }
    return folder;
  }
  KVSPAN_CHECK_OK(write_json(settings, file));
  return folder;
}

Result<std::optional<StudyData>> StudyFolder::unit(const std::string& name) const {
  const std::string path = unit_file(name);
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return std::optional<StudyData>();
  KVSPAN_TRY(const Json json, read_json(path));
  try {
    if (json.at("format") == kUnitFormat && json.at("version") == 1) {
      return std::optional(unit_from(json));
    }
  } catch (const Json::exception& error) {
    return fail(ErrorCode::kCorruptData, "'{}': {}; without the file it is measured again", path,
                error.what());
  }
  return fail(ErrorCode::kCorruptData, "'{}' is not a unit of a study", path);
}

Status StudyFolder::keep(const std::string& name, const StudyData& data, double seconds,
                         std::int32_t context) const {
  Json json{
      {"format", std::string(kUnitFormat)}, {"version", 1}, {"name", name}, {"seconds", seconds}};
  json.update(unit_json(data, context));
  return write_json(json, unit_file(name));
}

Result<Json> StudyFolder::bench() const {
  std::error_code ignored;
  if (!fs::exists(file("bench.json"), ignored)) return Json();
  return read_json(file("bench.json"));
}

Status StudyFolder::write(const Json& study, const std::string& tables) const {
  KVSPAN_CHECK_OK(write_json(study, file("study.json")));
  return write_file(file("study.txt"), tables);
}

}  // namespace kvspan::cli
