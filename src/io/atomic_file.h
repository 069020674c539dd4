// SPDX-License-Identifier: Apache-2.0
// Reading whole files, and writing files that are either complete or not there.
// A write goes to a temporary file in the same folder, which is flushed to the disk and then takes
// the final name in one rename: readers see the old file or the new one, whatever happens between.
// What a killed process left of such a write is removed by a later one to the same name.
// What is there and no plain file (/dev/null, a pipe) is written to as it is, and never replaced.
// A symbolic link stays: the file that it leads to is replaced. A replaced file keeps its mode and, as
// far as this process may give files away, its owner and group.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvspan/result.h"

namespace kvspan {

// A file being written. Without commit() the temporary file is removed and `path` stays as it was.
class AtomicFile {
 public:
  // Fails, naming the path, if it is a folder or a link to nothing, and if its folder takes no new file.
  static Result<AtomicFile> create(std::string path);
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&&) = delete;
  ~AtomicFile();

  Status write(std::span<const std::byte> bytes);
  // Makes the file durable and visible under its name. To be called once, as the last call.
  Status commit();
  // The same without waiting for the disk: when the machine stops, the file may be there and damaged.
  // For what is checked when it is read and can be made again.
  Status commit_unflushed();

 private:
  AtomicFile(std::string path, std::string temporary, int descriptor);
  std::string path_, temporary_;  // no temporary: a device or pipe, written directly
  int descriptor_;                // -1: nothing to clean up
};

Status write_file(const std::string& path, std::span<const std::byte> bytes);
Status write_file(const std::string& path, std::string_view text);

// The whole file. Fails with kNotFound, or with kIo naming path and reason; kOutOfBudget beyond
// `limit_bytes`, before anything is read.
Result<std::vector<std::byte>> read_file(const std::string& path,
                                         std::size_t limit_bytes = std::size_t{1} << 32);

}  // namespace kvspan
