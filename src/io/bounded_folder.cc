// SPDX-License-Identifier: Apache-2.0
#include "io/bounded_folder.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>

#include "base/fail.h"
#include "io/atomic_file.h"
#include "io/user_folders.h"

namespace kvspan {
namespace {

// What a process that was killed while writing leaves behind is removed after so many seconds.
constexpr std::int64_t kAbandoned = 3600;

bool is_temporary(const std::string& name) {
  return name.find(".tmp") != std::string::npos;
}

}  // namespace

Result<std::vector<std::byte>> BoundedFolder::read(const std::string& name) const {
  KVSPAN_TRY(auto bytes, read_file(path_of(name)));
  utimensat(AT_FDCWD, path_of(name).c_str(), nullptr, 0);
  return bytes;
}

std::vector<BoundedFolder::File> BoundedFolder::files() const {
  std::vector<File> files;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(path_, none)) {
    struct stat info {};
    if (stat(entry.path().c_str(), &info) != 0 || !S_ISREG(info.st_mode)) continue;
    files.push_back({entry.path().filename().string(), static_cast<std::size_t>(info.st_size),
                     static_cast<std::int64_t>(info.st_mtime)});
  }
  std::sort(files.begin(), files.end(), [](const File& a, const File& b) {
    return a.used != b.used ? a.used > b.used : a.name < b.name;
  });
  return files;
}

Status BoundedFolder::write(const std::string& name, std::span<const std::byte> bytes) const {
  KVSPAN_CHECK_OK(make_folders(path_));
  KVSPAN_CHECK_OK(write_file(path_of(name), bytes));
  std::size_t held = bytes.size();
  const auto now = static_cast<std::int64_t>(std::time(nullptr));
  for (const File& file : files()) {
    if (file.name == name) continue;
    if (is_temporary(file.name)) {
      if (now - file.used > kAbandoned) KVSPAN_CHECK_OK(remove(file.name));
      continue;
    }
    held += file.bytes;
    if (held > most_bytes_) KVSPAN_CHECK_OK(remove(file.name));
  }
  return {};
}

Status BoundedFolder::remove(const std::string& name) const {
  if (std::remove(path_of(name).c_str()) == 0 || errno == ENOENT) return {};
  return fail(ErrorCode::kIo, "cannot remove '{}': {}", path_of(name), std::strerror(errno));
}

Result<std::size_t> BoundedFolder::clean() const {
  std::size_t removed = 0;
  const auto now = static_cast<std::int64_t>(std::time(nullptr));
  for (const File& file : files()) {
    if (is_temporary(file.name) && now - file.used <= kAbandoned) continue;
    KVSPAN_CHECK_OK(remove(file.name));
    ++removed;
  }
  return removed;
}

}  // namespace kvspan
