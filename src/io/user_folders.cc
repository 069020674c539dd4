// SPDX-License-Identifier: Apache-2.0
#include "io/user_folders.h"

#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "base/fail.h"

namespace kvspan {

Result<std::string> user_cache_folder() {
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && cache[0] == '/') {
    return std::string(cache) + "/kvspan";
  }
  if (const char* home = std::getenv("HOME"); home != nullptr && home[0] == '/') {
    return std::string(home) + "/.cache/kvspan";
  }
  return fail(ErrorCode::kNotFound,
              "no folder for kvspan's files: set HOME or XDG_CACHE_HOME to an absolute path");
}

Status make_folders(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) {
    return fail(ErrorCode::kIo, "cannot create the folder '{}': {}", path, error.message());
  }
  return {};
}

}  // namespace kvspan
