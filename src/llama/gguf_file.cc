// SPDX-License-Identifier: Apache-2.0
#include "llama/gguf_file.h"

#include <fcntl.h>
#include <ggml-backend.h>
#include <ggml-cpu.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/fail.h"
#include "llama/ggml_log.h"

namespace kvspan {
namespace {

std::string shape_text(const ggml_tensor* t) {
  return fmt::format("[{}, {}]", t->ne[0], t->ne[1]);
}

std::optional<std::int64_t> as_int(gguf_type type, const void* at, std::size_t i) {
  switch (type) {
    case GGUF_TYPE_UINT8:
      return static_cast<const std::uint8_t*>(at)[i];
    case GGUF_TYPE_INT8:
      return static_cast<const std::int8_t*>(at)[i];
    case GGUF_TYPE_UINT16:
      return static_cast<const std::uint16_t*>(at)[i];
    case GGUF_TYPE_INT16:
      return static_cast<const std::int16_t*>(at)[i];
    case GGUF_TYPE_UINT32:
      return static_cast<const std::uint32_t*>(at)[i];
    case GGUF_TYPE_INT32:
      return static_cast<const std::int32_t*>(at)[i];
    case GGUF_TYPE_UINT64:
      return static_cast<std::int64_t>(static_cast<const std::uint64_t*>(at)[i]);
    case GGUF_TYPE_INT64:
      return static_cast<const std::int64_t*>(at)[i];
    case GGUF_TYPE_BOOL:
      return static_cast<const std::int8_t*>(at)[i] != 0;
    default:
      return std::nullopt;
  }
}

}  // namespace

Result<std::unique_ptr<GgufFile>> GgufFile::open(const std::string& path) {
  auto file = std::unique_ptr<GgufFile>(new GgufFile);
  file->path_ = path;
  KVSPAN_CHECK_OK(file->map(path));
  KVSPAN_CHECK_OK(file->place_tensors());
  return file;
}

GgufFile::~GgufFile() {
  if (buffer_ != nullptr) ggml_backend_buffer_free(buffer_);
  if (gguf_ != nullptr) gguf_free(gguf_);
  if (tensors_ != nullptr) ggml_free(tensors_);
  if (mapping_ != nullptr) munmap(mapping_, bytes_);
}

Status GgufFile::map(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    return fail(errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo,
                "cannot open model '{}': {}", path, std::strerror(errno));
  }
  struct stat info {};
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(fd);
    return fail(ErrorCode::kInvalidArgument, "model '{}' is not a regular file", path);
  }
  bytes_ = static_cast<std::size_t>(info.st_size);
  char magic[4] = {};
  if (bytes_ < 24 || pread(fd, magic, 4, 0) != 4 || std::memcmp(magic, "GGUF", 4) != 0) {
    ::close(fd);
    return fail(ErrorCode::kCorruptData, "'{}' is not a GGUF file (it does not start with 'GGUF')",
                path);
  }
  mapping_ = mmap(nullptr, bytes_, PROT_READ, MAP_SHARED, fd, 0);
  const int map_errno = errno;
  ::close(fd);
  if (mapping_ == MAP_FAILED) {
    mapping_ = nullptr;
    return fail(ErrorCode::kIo, "cannot map model '{}': {}", path, std::strerror(map_errno));
  }
  return {};
}

Status GgufFile::place_tensors() {
  GgmlLogCapture log;
  gguf_ = gguf_init_from_file(path_.c_str(), {/*no_alloc=*/true, /*ctx=*/&tensors_});
  if (gguf_ == nullptr) {
    return fail(ErrorCode::kCorruptData, "'{}' is damaged: {}", path_,
                log.reason().empty() ? "its header does not parse" : log.reason());
  }
  const std::size_t data_start = gguf_get_data_offset(gguf_);
  const std::int64_t count = gguf_get_n_tensors(gguf_);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::size_t offset = data_start + gguf_get_tensor_offset(gguf_, i);
    const std::size_t size = gguf_get_tensor_size(gguf_, i);
    if (offset > bytes_ || size > bytes_ - offset) {
      return fail(ErrorCode::kCorruptData,
                  "'{}' is truncated: tensor '{}' needs bytes {} to {}, the file has {}", path_,
                  gguf_get_tensor_name(gguf_, i), offset, offset + size, bytes_);
    }
    tensor_bytes_ += size;
  }
  if (count == 0) return {};
  // ggml reads weights through the buffer they lie in; this one is the mapping itself. ggml's types
  // are not const, but nothing writes to weights.
  buffer_ = ggml_backend_cpu_buffer_from_ptr(mapping_, bytes_);
  for (std::int64_t i = 0; i < count; ++i) {
    ggml_tensor* tensor = ggml_get_tensor(tensors_, gguf_get_tensor_name(gguf_, i));
    tensor->buffer = buffer_;
    tensor->data = static_cast<char*>(mapping_) + data_start + gguf_get_tensor_offset(gguf_, i);
  }
  return {};
}

Result<std::optional<std::int64_t>> GgufFile::find_int(const std::string& key) const {
  const std::int64_t id = gguf_find_key(gguf_, key.c_str());
  if (id < 0) return std::optional<std::int64_t>();
  const gguf_type type = gguf_get_kv_type(gguf_, id);
  if (type != GGUF_TYPE_ARRAY && type != GGUF_TYPE_STRING) {
    if (const auto value = as_int(type, gguf_get_val_data(gguf_, id), 0)) return value;
  }
  return fail(ErrorCode::kCorruptData, "'{}': key '{}' is {}, expected an integer", path_, key,
              gguf_type_name(type));
}

Result<std::optional<std::string>> GgufFile::find_string(const std::string& key) const {
  const std::int64_t id = gguf_find_key(gguf_, key.c_str());
  if (id < 0) return std::optional<std::string>();
  if (gguf_get_kv_type(gguf_, id) == GGUF_TYPE_STRING) {
    return std::optional<std::string>(gguf_get_val_str(gguf_, id));
  }
  return fail(ErrorCode::kCorruptData, "'{}': key '{}' is {}, expected a string", path_, key,
              gguf_type_name(gguf_get_kv_type(gguf_, id)));
}

Result<std::string> GgufFile::require_string(const std::string& key) const {
  KVSPAN_TRY(auto value, find_string(key));
  if (value) return *std::move(value);
  return fail(ErrorCode::kCorruptData, "'{}' lacks the key '{}'", path_, key);
}

ggml_tensor* GgufFile::find_tensor(const std::string& name) const {
  return tensors_ == nullptr ? nullptr : ggml_get_tensor(tensors_, name.c_str());
}

std::vector<const ggml_tensor*> GgufFile::all_tensors() const {
  std::vector<const ggml_tensor*> all;
  for (std::int64_t i = 0; i < gguf_get_n_tensors(gguf_); ++i) {
    all.push_back(ggml_get_tensor(tensors_, gguf_get_tensor_name(gguf_, i)));
  }
  return all;
}

std::span<const std::byte> GgufFile::header() const noexcept {
  return {static_cast<const std::byte*>(mapping_), std::min(bytes_, gguf_get_data_offset(gguf_))};
}

Result<ggml_tensor*> GgufFile::require_tensor(const std::string& name, std::int64_t ne0,
                                              std::int64_t ne1) const {
  ggml_tensor* tensor = find_tensor(name);
  if (tensor == nullptr) {
    return fail(ErrorCode::kCorruptData, "'{}' lacks the tensor '{}'", path_, name);
  }
  const bool fits = (ne0 == 0 || tensor->ne[0] == ne0) && (ne1 == 0 || tensor->ne[1] == ne1) &&
                    tensor->ne[2] == 1 && tensor->ne[3] == 1;
  if (!fits) {
    return fail(ErrorCode::kCorruptData, "'{}': tensor '{}' has shape {}, expected [{}, {}]", path_,
                name, shape_text(tensor), ne0, ne1);
  }
  return tensor;
}

}  // namespace kvspan
