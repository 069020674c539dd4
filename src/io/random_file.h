// SPDX-License-Identifier: Apache-2.0
// A file that stays open and is read piece by piece, for what is too large to hold at once. Whoever
// replaces the file by a rename does not change what is read here.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "kvspan/result.h"

namespace kvspan {

class RandomFile {
 public:
  // Fails with kNotFound, or with kIo naming path and reason, as where it is not a regular file.
  static Result<RandomFile> open(std::string path);
  RandomFile(RandomFile&& other) noexcept;
  RandomFile& operator=(RandomFile&&) = delete;
  ~RandomFile();

  const std::string& path() const noexcept { return path_; }
  std::size_t bytes() const noexcept { return bytes_; }
  // Fills `to` from `offset` on; fails where the file ends before that. May be called from several
  // threads at once.
  Status read(std::size_t offset, std::span<std::byte> to) const;

 private:
  RandomFile(std::string path, int descriptor, std::size_t bytes)
      : path_(std::move(path)), descriptor_(descriptor), bytes_(bytes) {}
  std::string path_;
  int descriptor_;
  std::size_t bytes_;
};

}  // namespace kvspan
