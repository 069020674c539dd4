// SPDX-License-Identifier: Apache-2.0
#include "io/folder_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <memory>

namespace kvspan {
namespace {

std::int64_t to_ns(const timespec& time) {
  return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

void add_files(const std::string& folder, int levels, std::vector<FolderFile>& files) {
  const std::unique_ptr<DIR, int (*)(DIR*)> open(opendir(folder.c_str()), closedir);
  if (!open) return;
  while (const dirent* entry = readdir(open.get())) {
    const std::string name = entry->d_name;
    if (name == "." || name == "..") continue;
    std::string path = folder + "/" + name;
    struct stat info {};
    // Links are not followed: what they name is not the folder's.
    if (lstat(path.c_str(), &info) != 0) continue;
    if (S_ISREG(info.st_mode)) {
      files.push_back(
          {std::move(path), static_cast<std::uint64_t>(info.st_size), to_ns(info.st_mtim)});
    } else if (S_ISDIR(info.st_mode) && levels > 0) {
      add_files(path, levels - 1, files);
    }
  }
}

}  // namespace

std::vector<FolderFile> list_files(const std::string& folder) {
  std::vector<FolderFile> files;
  add_files(folder, 1, files);
  return files;
}

std::int64_t clock_ns() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return to_ns(now);
}

bool file_exists(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode);
}

void touch_file(const std::string& path) {
  utimensat(AT_FDCWD, path.c_str(), nullptr, 0);
}

void remove_file(const std::string& path) {
  unlink(path.c_str());
}

FolderLock::FolderLock(const std::string& path)
    : descriptor_(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666)) {
  held_ = descriptor_ >= 0 && flock(descriptor_, LOCK_EX | LOCK_NB) == 0;
}

FolderLock::~FolderLock() {
  if (descriptor_ >= 0) close(descriptor_);
}

}  // namespace kvspan
