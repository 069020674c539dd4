// SPDX-License-Identifier: Apache-2.0
#include "io/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "base/fail.h"
#include "io/abandoned_files.h"

namespace kvspan {
namespace {

Error system_error(const char* what, const std::string& path) {
  const int number = errno;
  return fail(number == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo, "cannot {} '{}': {}", what,
              path, std::strerror(number));
}

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

// The file that `path` leads to. A rename onto a link would replace the link, so the file behind it
// is replaced instead.
Result<std::string> behind_links(std::string path) {
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0 || !S_ISLNK(info.st_mode)) return path;
  const std::unique_ptr<char, decltype(&std::free)> target(realpath(path.c_str(), nullptr),
                                                           &std::free);
  if (target == nullptr) return system_error("follow the link", path);
  return std::string(target.get());
}

// The new file gets the old one's owner, group and mode. If this process may not give it the group,
// the mode's bits for a group, which were meant for another one, are left out.
void take_over_rights(const struct stat& old, int descriptor) {
  mode_t mode = old.st_mode & 07777;
  struct stat own {};
  if (fstat(descriptor, &own) != 0) return;
  if (own.st_uid != old.st_uid && fchown(descriptor, old.st_uid, static_cast<gid_t>(-1)) != 0) {
    mode &= ~static_cast<mode_t>(S_ISUID);
  }
  if (own.st_gid != old.st_gid && fchown(descriptor, static_cast<uid_t>(-1), old.st_gid) != 0) {
    mode &= ~static_cast<mode_t>(S_ISGID | S_IRWXG);
  }
  if ((own.st_mode & 07777) != mode) (void)fchmod(descriptor, mode);
}

// Opens a file that was not there; the umask decides its mode. The name holds the process and a
// count, so a file that a killed process left behind is stepped over until it is old enough to be
// removed.
int open_new(const std::string& path, std::string& name) {
  static std::atomic<unsigned> count{0};
  while (true) {
    name = fmt::format("{}.{}-{}.tmp", path, getpid(), count.fetch_add(1));
    const int descriptor = open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor >= 0 || errno != EEXIST) return descriptor;
  }
}

}  // namespace

AtomicFile::AtomicFile(std::string path, std::string temporary, int descriptor)
    : path_(std::move(path)), temporary_(std::move(temporary)), descriptor_(descriptor) {}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::move(other.temporary_)),
      descriptor_(std::exchange(other.descriptor_, -1)) {}

AtomicFile::~AtomicFile() {
  if (descriptor_ < 0) return;
  close(descriptor_);
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

Result<AtomicFile> AtomicFile::create(std::string name) {
  KVSPAN_TRY(std::string path, behind_links(std::move(name)));
  std::string temporary;
  struct stat old {};
  const bool replaces = stat(path.c_str(), &old) == 0;
  if (replaces && S_ISDIR(old.st_mode)) {
    return fail(ErrorCode::kIo, "cannot write '{}': it is a folder", path);
  }
  if (replaces && !S_ISREG(old.st_mode)) {
    const int device = open(path.c_str(), O_WRONLY | O_CLOEXEC);
    if (device < 0) return system_error("open", path);
    return AtomicFile(std::move(path), std::move(temporary), device);
  }
  remove_abandoned(path + ".", ".tmp");
  const int descriptor = open_new(path, temporary);
  if (descriptor < 0) return system_error("create a file beside", path);
  if (replaces) take_over_rights(old, descriptor);
  return AtomicFile(std::move(path), std::move(temporary), descriptor);
}

Status AtomicFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(descriptor_, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return system_error("write", path_);
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
  return {};
}

Status AtomicFile::commit() {
  if (temporary_.empty()) {
    if (close(std::exchange(descriptor_, -1)) != 0) return system_error("close", path_);
    return {};
  }
  if (fsync(descriptor_) != 0) return system_error("flush", path_);
  KVSPAN_CHECK_OK(commit_unflushed());
  // The rename itself is durable once the folder is; a folder that cannot be synced (some network
  // file systems) still holds a complete file.
  const int folder = open(folder_of(path_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder >= 0) {
    fsync(folder);
    close(folder);
  }
  return {};
}

Status AtomicFile::commit_unflushed() {
  if (temporary_.empty()) return commit();
  if (rename(temporary_.c_str(), path_.c_str()) != 0) return system_error("put in place", path_);
  close(std::exchange(descriptor_, -1));
  return {};
}

Status write_file(const std::string& path, std::span<const std::byte> bytes) {
  KVSPAN_TRY(AtomicFile file, AtomicFile::create(path));
  KVSPAN_CHECK_OK(file.write(bytes));
  return file.commit();
}

Status write_file(const std::string& path, std::string_view text) {
  return write_file(path, std::as_bytes(std::span(text.data(), text.size())));
}

Result<std::vector<std::byte>> read_file(const std::string& path, std::size_t limit_bytes) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return system_error("open", path);
  struct Closer {
    int descriptor;
    ~Closer() { close(descriptor); }
  } closer{descriptor};
  struct stat info {};
  if (fstat(descriptor, &info) != 0) return system_error("examine", path);
  if (S_ISDIR(info.st_mode)) return fail(ErrorCode::kIo, "cannot read '{}': it is a folder", path);
  if (static_cast<std::size_t>(info.st_size) > limit_bytes) {
    return fail(ErrorCode::kOutOfBudget, "'{}' has {} bytes, allowed are {}", path, info.st_size,
                limit_bytes);
  }
  // A pipe or /proc file has no length to believe: read until the end, within the limit. One byte
  // more than the length lets the last read find the end.
  std::vector<std::byte> bytes(static_cast<std::size_t>(info.st_size) + 1);
  std::size_t used = 0;
  while (true) {
    if (used == bytes.size()) bytes.resize(2 * used + 4096);
    const ssize_t n = ::read(descriptor, bytes.data() + used, bytes.size() - used);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return system_error("read", path);
    if (n == 0) break;
    used += static_cast<std::size_t>(n);
    if (used > limit_bytes) {
      return fail(ErrorCode::kOutOfBudget, "'{}' has more than {} bytes", path, limit_bytes);
    }
  }
  bytes.resize(used);
  return bytes;
}

}  // namespace kvspan
