// SPDX-License-Identifier: Apache-2.0
#include "store/disk_blobs.h"

#include <algorithm>

#include "base/fail.h"
#include "io/atomic_file.h"
#include "io/folder_files.h"
#include "io/user_folders.h"

namespace kvspan {
namespace {

constexpr std::string_view kEnding = ".kv";
// A temporary file untouched for so long belongs to a program that was killed.
constexpr std::int64_t kAbandonedNs = 600'000'000'000;

}  // namespace

Result<std::unique_ptr<DiskBlobs>> DiskBlobs::open(std::string folder, std::uint64_t limit_bytes) {
  KVSPAN_CHECK_OK(make_folders(folder));
  std::unique_ptr<DiskBlobs> blobs(new DiskBlobs(std::move(folder), limit_bytes));
  // Said at once, not when the first prompt is kept.
  const std::string probe = fmt::format("{}/probe.kv", blobs->folder_);
  KVSPAN_CHECK_OK(write_file(probe, std::string_view()));
  remove_file(probe);
  blobs->sweep(0);
  return blobs;
}

std::string DiskBlobs::describe() const {
  return fmt::format("folder {}, up to {} bytes", folder_, limit_);
}

// Folders by the first two digits keep each short.
std::string DiskBlobs::path(const std::string& key) const {
  return fmt::format("{}/{}/{}{}", folder_, key.substr(0, 2), key, kEnding);
}

Result<std::vector<std::optional<std::vector<std::byte>>>> DiskBlobs::get(
    std::span<const std::string> keys, std::size_t most_bytes) {
  std::vector<std::optional<std::vector<std::byte>>> found;
  for (const std::string& key : keys) {
    auto bytes = read_file(path(key), most_bytes);
    if (bytes) {
      touch_file(path(key));
    } else if (bytes.error().code == ErrorCode::kOutOfBudget) {
      bytes = std::vector<std::byte>();  // too long: as an empty one it fails its check and goes
    }
    found.emplace_back(bytes ? std::optional(std::move(*bytes)) : std::nullopt);
  }
  return found;
}

Result<std::vector<bool>> DiskBlobs::has(std::span<const std::string> keys) {
  std::vector<bool> found;
  for (const std::string& key : keys) {
    found.push_back(file_exists(path(key)));
    if (found.back()) touch_file(path(key));
  }
  return found;
}

Status DiskBlobs::put(std::span<const BlobView> blobs) {
  std::uint64_t sum = 0;
  for (const BlobView& blob : blobs) sum += blob.bytes.size();
  if (sum > limit_ / 2) {
    return fail(ErrorCode::kOutOfBudget, "{} bytes are more than half of a store of {}", sum,
                limit_);
  }
  {
    const std::lock_guard lock(mutex_);
    bytes_ += sum;
    written_ += sum;
    if (bytes_ > limit_ || written_ > limit_ / 10) sweep(sum);
  }
  for (const BlobView& blob : blobs) {
    const std::string to = path(blob.key);
    KVSPAN_CHECK_OK(make_folders(to.substr(0, to.rfind('/'))));
    KVSPAN_TRY(AtomicFile file, AtomicFile::create(to));
    KVSPAN_CHECK_OK(file.write(blob.bytes));
    KVSPAN_CHECK_OK(file.commit_unflushed());
  }
  return {};
}

void DiskBlobs::remove(std::span<const std::string> keys) {
  for (const std::string& key : keys) remove_file(path(key));
}

std::uint64_t DiskBlobs::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

void DiskBlobs::sweep(std::uint64_t coming) {
  const FolderLock lock(folder_ + "/lock");
  std::vector<FolderFile> files = list_files(folder_);
  const std::int64_t now = clock_ns();
  std::uint64_t sum = coming;
  std::erase_if(files, [&](const FolderFile& file) {
    if (file.path.ends_with(kEnding)) return false;
    // Nothing else is this store's to remove.
    if (lock.held() && file.path.ends_with(".tmp") &&
        file.path.find(kEnding) != std::string::npos && now - file.used_ns > kAbandonedNs) {
      remove_file(file.path);
    }
    return true;
  });
  for (const FolderFile& file : files) sum += file.bytes;
  if (sum > limit_ && lock.held()) {
    std::sort(files.begin(), files.end(), [](const FolderFile& a, const FolderFile& b) {
      return a.used_ns < b.used_ns;
    });
    for (const FolderFile& file : files) {
      if (sum <= limit_ / 10 * 9) break;
      remove_file(file.path);
      sum -= file.bytes;
    }
  }
  bytes_ = sum;
  written_ = 0;
}

}  // namespace kvspan
