// SPDX-License-Identifier: Apache-2.0
// The KVSPAN_ names are this file's compile definitions, set by CMakeLists.txt beside it.
#include "cli/data_folder.h"

#include <cstdlib>
#include <filesystem>

#include "base/fail.h"

namespace kvspan::cli {
namespace {

namespace fs = std::filesystem;

fs::path installed_folder() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  return (program.parent_path() / KVSPAN_INSTALLED_DATA).lexically_normal();
}

bool is_folder(const fs::path& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}

}  // namespace

Result<std::string> data_folder() {
  if (const char* chosen = std::getenv("KVSPAN_DATA"); chosen != nullptr && *chosen != '\0') {
    if (is_folder(chosen)) return std::string(chosen);
    return fail(ErrorCode::kNotFound, "KVSPAN_DATA names '{}', which is not a folder", chosen);
  }
  const fs::path installed = installed_folder();
  if (is_folder(installed)) return installed.string();
  const fs::path source = fs::path(KVSPAN_SOURCE_TREE) / "data";
  if (is_folder(source)) return source.string();
  return fail(ErrorCode::kNotFound,
              "kvspan's data is neither in '{}' nor in '{}'; KVSPAN_DATA can name its folder",
              installed.string(), source.string());
}

Result<std::string> script_path(const std::string& name) {
  const fs::path installed = installed_folder() / "scripts" / name;
  const fs::path source = fs::path(KVSPAN_SOURCE_TREE) / "scripts" / name;
  std::error_code error;
  if (fs::exists(installed, error)) return installed.string();
  if (fs::exists(source, error)) return source.string();
  return fail(ErrorCode::kNotFound, "the script {} is neither at '{}' nor at '{}'", name,
              installed.string(), source.string());
}

}  // namespace kvspan::cli
