// SPDX-License-Identifier: Apache-2.0
// GGUF files of models, as they are opened before libllama sees them. Damaged files are errors; all that an accepted
// one says about itself lies within it.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "base/byte_stream.h"
#include "llama/dequantize.h"
#include "llama/gguf_file.h"
#include "tests/fuzz/target.h"

namespace kvspan::fuzz {
namespace {

// A file in memory, written anew for each input.
class MemoryFile {
 public:
  MemoryFile() : descriptor_(memfd_create("fuzz", MFD_CLOEXEC)), path_(fmt::format("/proc/self/fd/{}", descriptor_)) {
    must(descriptor_ >= 0, "no file in memory");
  }
  ~MemoryFile() { close(descriptor_); }
  MemoryFile(const MemoryFile&) = delete;
  const std::string& hold(std::span<const std::uint8_t> bytes) {
    must(ftruncate(descriptor_, 0) == 0 &&
             pwrite(descriptor_, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()),
         "the file in memory is not written");
    return path_;
  }

 private:
  int descriptor_;
  std::string path_;
};

bool run(std::span<const std::uint8_t> input) {
  static MemoryFile held;
  const auto file = GgufFile::open(held.hold(input));
  if (!file) return false;
  must((*file)->file_bytes() == input.size() && (*file)->header().size() <= input.size(), "a header beyond the file");
  for (const char* const key : {"general.architecture", "general.alignment", "number", "text", "list"}) {
    (void)(*file)->find_int(key);
    (void)(*file)->find_string(key);
  }
  std::size_t sum = 0;
  for (const ggml_tensor* const tensor : (*file)->all_tensors()) {
    must((*file)->find_tensor(tensor->name) != nullptr, "a tensor that is listed is not found");
    (void)(*file)->require_tensor(tensor->name, tensor->ne[0], 0);
    // Every byte that it says it has can be read.
    const auto* const first = static_cast<const std::byte*>(tensor->data);
    sum += crc64({first, ggml_nbytes(tensor)}) & 1;
    if (ggml_nelements(tensor) < (1 << 16)) sum += floats_of(tensor).size();
  }
  must(sum < SIZE_MAX, "never");
  return true;
}

class Writer {
 public:
  template <class T>
  Writer& number(T value) {
    const auto* const first = reinterpret_cast<const std::uint8_t*>(&value);
    bytes.insert(bytes.end(), first, first + sizeof value);
    return *this;
  }
  Writer& text(std::string_view value) {
    number<std::uint64_t>(value.size());
    bytes.insert(bytes.end(), value.begin(), value.end());
    return *this;
  }
  Bytes bytes;
};

// Six keys and two tensors.
std::vector<Bytes> seeds() {
  Writer out;
  out.bytes = {'G', 'G', 'U', 'F'};
  out.number<std::uint32_t>(3).number<std::int64_t>(2).number<std::int64_t>(6);
  out.text("general.architecture").number(GGUF_TYPE_STRING).text("llama");
  out.text("general.alignment").number(GGUF_TYPE_UINT32).number<std::uint32_t>(32);
  out.text("number").number(GGUF_TYPE_INT64).number<std::int64_t>(-7);
  out.text("flag").number(GGUF_TYPE_BOOL).number<std::int8_t>(1);
  out.text("list").number(GGUF_TYPE_ARRAY).number(GGUF_TYPE_FLOAT32).number<std::uint64_t>(2).number(1.0f).number(2.0f);
  out.text("texts").number(GGUF_TYPE_ARRAY).number(GGUF_TYPE_STRING).number<std::uint64_t>(2).text("a").text("bc");
  out.text("token_embd.weight").number<std::uint32_t>(2).number<std::int64_t>(8).number<std::int64_t>(2);
  out.number(GGML_TYPE_F32).number<std::uint64_t>(0);
  out.text("output.weight").number<std::uint32_t>(1).number<std::int64_t>(32).number(GGML_TYPE_Q8_0).number<std::uint64_t>(64);
  out.bytes.resize((out.bytes.size() + 31) / 32 * 32);
  out.bytes.resize(out.bytes.size() + 64 + 64, 1);
  return {out.bytes};
}

}  // namespace

extern const Target gguf_target{"gguf", "GGUF files of models", 1 << 13, run, seeds};

}  // namespace kvspan::fuzz
