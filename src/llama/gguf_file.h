// SPDX-License-Identifier: Apache-2.0
// A GGUF file mapped into memory: typed metadata and tensors whose data point into the mapping.
// Everything the file says about itself is checked against its real size before anything is read,
// so a truncated or damaged file is an Error, never a fault. Read-only; safe to share between
// threads.
#pragma once

#include <ggml.h>
#include <gguf.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvspan/result.h"

namespace kvspan {

class GgufFile {
 public:
  static Result<std::unique_ptr<GgufFile>> open(const std::string& path);
  ~GgufFile();
  GgufFile(const GgufFile&) = delete;
  GgufFile& operator=(const GgufFile&) = delete;

  const std::string& path() const noexcept { return path_; }
  std::size_t file_bytes() const noexcept { return bytes_; }

  // Metadata. The optional forms are empty when the key is absent and fail when it has another
  // type; find_int takes any integer type that holds the value.
  Result<std::optional<std::int64_t>> find_int(const std::string& key) const;
  Result<std::optional<std::string>> find_string(const std::string& key) const;
  Result<std::string> require_string(const std::string& key) const;

  // Null when absent.
  ggml_tensor* find_tensor(const std::string& name) const;
  // Fails, naming tensor and shapes, when absent or of another shape ([ne0, ne1]; 0 = any).
  Result<ggml_tensor*> require_tensor(const std::string& name, std::int64_t ne0,
                                      std::int64_t ne1 = 1) const;
  std::size_t tensor_bytes() const noexcept { return tensor_bytes_; }
  // In the file's order.
  std::vector<const ggml_tensor*> all_tensors() const;
  // Everything before the tensors' data.
  std::span<const std::byte> header() const noexcept;

 private:
  GgufFile() = default;
  Status map(const std::string& path);
  Status place_tensors();

  std::string path_;
  void* mapping_ = nullptr;
  std::size_t bytes_ = 0;
  std::size_t tensor_bytes_ = 0;
  gguf_context* gguf_ = nullptr;
  ggml_context* tensors_ = nullptr;
  ggml_backend_buffer* buffer_ = nullptr;
};

}  // namespace kvspan
