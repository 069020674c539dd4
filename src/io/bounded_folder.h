// SPDX-License-Identifier: Apache-2.0
// A folder of files that can be made again, kept below a number of bytes: what has not been used
// for longest goes first. Several processes may use it at once: files appear whole, and one that
// another process has removed is simply not there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kvspan/result.h"

namespace kvspan {

class BoundedFolder {
 public:
  struct File {
    std::string name;  // beneath the folder
    std::size_t bytes = 0;
    std::int64_t used = 0;  // seconds since 1970
  };

  BoundedFolder(std::string path, std::size_t most_bytes)
      : path_(std::move(path)), most_bytes_(most_bytes) {}

  const std::string& path() const noexcept { return path_; }
  std::string path_of(const std::string& name) const { return path_ + "/" + name; }
  // Its bytes, and from now on it is the last that was used. kNotFound where there is none.
  Result<std::vector<std::byte>> read(const std::string& name) const;
  // Makes the folder where there is none. Other files go where all are too many bytes; a file that
  // is too large alone is written nevertheless.
  Status write(const std::string& name, std::span<const std::byte> bytes) const;
  Status remove(const std::string& name) const;
  // By last use, the latest first. Empty where there is no folder.
  std::vector<File> files() const;
  // Removes all files but those that are being written. How many.
  Result<std::size_t> clean() const;

 private:
  std::string path_;
  std::size_t most_bytes_;
};

}  // namespace kvspan
