// SPDX-License-Identifier: Apache-2.0
// The files of a folder that several processes use as a cache: what is there, how large, how long
// ago it was used. Another process may remove a file at any time; none of these calls minds.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kvspan/result.h"

namespace kvspan {

struct FolderFile {
  std::string path;
  std::uint64_t bytes = 0;
  std::int64_t used_ns = 0;  // time of the last touch or write, since 1970
};

// Plain files in the folder and one level below it, in no order. None where it cannot be read.
std::vector<FolderFile> list_files(const std::string& folder);
std::int64_t clock_ns();  // now, as FolderFile has it
bool file_exists(const std::string& path);
void touch_file(const std::string& path);   // used now
void remove_file(const std::string& path);

// Held by one process at a time; given back when the object or the process ends.
class FolderLock {
 public:
  // Does not wait: held() says whether the lock was free. `path` is created and stays.
  explicit FolderLock(const std::string& path);
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;
  ~FolderLock();
  bool held() const noexcept { return held_; }

 private:
  int descriptor_ = -1;
  bool held_ = false;
};

}  // namespace kvspan
