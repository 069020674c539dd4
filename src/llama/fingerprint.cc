// SPDX-License-Identifier: Apache-2.0
#include "llama/fingerprint.h"

#include <algorithm>

#include "base/fail.h"
#include "io/sha256.h"
#include "llama/file_fingerprint.h"
#include "llama/pages.h"

namespace kvspan {
namespace {

constexpr std::size_t kSampleBytes = 4096;
constexpr std::size_t kDigits = 32;

}  // namespace

std::string fingerprint_of(const GgufFile& file) {
  Sha256 hash;
  const std::uint64_t length = file.file_bytes();
  hash.add(std::as_bytes(std::span(&length, 1)));
  hash.add(file.header());
  for (const ggml_tensor* tensor : file.all_tensors()) {
    const std::span bytes(static_cast<const std::byte*>(tensor->data), ggml_nbytes(tensor));
    const std::size_t sample = std::min(kSampleBytes, bytes.size());
    hash.add(bytes.first(sample));
    hash.add(bytes.subspan((bytes.size() - sample) / 2, sample));
    hash.add(bytes.last(sample));
    give_back_pages(bytes.data(), bytes.size());  // around each sample the system maps some more
  }
  return hash.finish().substr(0, kDigits);
}

Result<std::string> file_fingerprint(const std::string& path) {
  KVSPAN_TRY(const auto file, GgufFile::open(path));
  return fingerprint_of(*file);
}

}  // namespace kvspan
