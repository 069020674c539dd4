// SPDX-License-Identifier: Apache-2.0
// A store's entries as files of one folder, used by any number of programs at once.
// A file is complete or not there; one that the machine's stop has damaged fails its check when it is
// read. Files that are used are touched; when the folder holds more than its limit, one program
// removes those untouched for longest, down to nine tenths of it. Between two such sweeps a folder
// exceeds its limit by a tenth at most for each program.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "store/blobs.h"

namespace kvspan {

class DiskBlobs final : public Blobs {
 public:
  // The folder is made where it is not there.
  static Result<std::unique_ptr<DiskBlobs>> open(std::string folder, std::uint64_t limit_bytes);

  std::string describe() const override;
  Result<std::vector<std::optional<std::vector<std::byte>>>> get(
      std::span<const std::string> keys, std::size_t most_bytes) override;
  Result<std::vector<bool>> has(std::span<const std::string> keys) override;
  Status put(std::span<const BlobView> blobs) override;
  void remove(std::span<const std::string> keys) override;
  std::uint64_t bytes() const override;

 private:
  DiskBlobs(std::string folder, std::uint64_t limit)
      : folder_(std::move(folder)), limit_(limit) {}
  std::string path(const std::string& key) const;
  // Counts the folder's bytes plus `coming`, removes entries untouched for longest if that exceeds
  // the limit, and removes unfinished files of programs that were killed.
  void sweep(std::uint64_t coming);

  const std::string folder_;
  const std::uint64_t limit_;
  mutable std::mutex mutex_;
  std::uint64_t bytes_ = 0;    // found by the last sweep, and written since
  std::uint64_t written_ = 0;  // since the last sweep
};

}  // namespace kvspan
