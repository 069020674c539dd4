// SPDX-License-Identifier: Apache-2.0
// The folder of a study (docs/reference/formats/study.md): units that are done stay done.
#pragma once

#include <optional>
#include <string>

#include "cli/output/json_output.h"
#include "eval/study/study_plan.h"
#include "eval/study/study_rows.h"

namespace kvspan::cli {

// A checksum of units and recipes.
std::string checksum_of(const std::vector<StudyUnit>& plan);

class StudyFolder {
 public:
  // Makes the folder where there is none. One that holds a study of other settings is refused,
  // naming the first that differs, unless `restart`, which forgets what was measured.
  static Result<StudyFolder> open(const std::string& path, const Json& settings, bool restart);

  // Nothing where it has not been measured. Fails on a damaged file, naming it.
  Result<std::optional<StudyData>> unit(const std::string& name) const;
  Status keep(const std::string& name, const StudyData& data, double seconds,
              std::int32_t context) const;
  // What `kvspan bench` has left there, or null.
  Result<Json> bench() const;
  Status write(const Json& study, const std::string& tables) const;

 private:
  explicit StudyFolder(std::string path) : path_(std::move(path)) {}
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  std::string unit_file(const std::string& name) const {
    return path_ + "/units/" + name + ".json";
  }
  std::string path_;
};

}  // namespace kvspan::cli
