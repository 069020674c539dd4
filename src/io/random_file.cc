// SPDX-License-Identifier: Apache-2.0
#include "io/random_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/fail.h"

namespace kvspan {

Result<RandomFile> RandomFile::open(std::string path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) {
    return fail(errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo, "cannot open '{}': {}",
                path, std::strerror(errno));
  }
  struct stat info {};
  if (fstat(descriptor, &info) != 0 || !S_ISREG(info.st_mode)) {
    close(descriptor);
    return fail(ErrorCode::kIo, "cannot read '{}': it is not a regular file", path);
  }
  return RandomFile(std::move(path), descriptor, static_cast<std::size_t>(info.st_size));
}

RandomFile::RandomFile(RandomFile&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      bytes_(other.bytes_) {}

RandomFile::~RandomFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

Status RandomFile::read(std::size_t offset, std::span<std::byte> to) const {
  while (!to.empty()) {
    const ssize_t n = pread(descriptor_, to.data(), to.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      return fail(ErrorCode::kIo, "cannot read '{}': {}", path_, std::strerror(errno));
    }
    if (n == 0) return fail(ErrorCode::kIo, "'{}' ends at byte {}", path_, offset);
    offset += static_cast<std::size_t>(n);
    to = to.subspan(static_cast<std::size_t>(n));
  }
  return {};
}

}  // namespace kvspan
