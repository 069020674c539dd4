// SPDX-License-Identifier: Apache-2.0
#include "llama/dequantize.h"

#include <ggml.h>
#include <gguf.h>

#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

#include "base/fail.h"
#include "llama/gguf_file.h"

namespace kvspan {
namespace {

struct FreeGguf {
  void operator()(gguf_context* gguf) const { gguf_free(gguf); }
};
struct FreeTensors {
  void operator()(ggml_context* tensors) const { ggml_free(tensors); }
};

// The first half of the memory becomes the numbers in f16.
void narrow_in_place(std::vector<float>& numbers) {
  std::vector<ggml_fp16_t> halves(numbers.size());
  ggml_fp32_to_fp16_row(numbers.data(), halves.data(), static_cast<std::int64_t>(numbers.size()));
  std::memcpy(numbers.data(), halves.data(), halves.size() * sizeof(ggml_fp16_t));
}

}  // namespace

std::vector<float> floats_of(const ggml_tensor* tensor) {
  const auto count = static_cast<std::size_t>(ggml_nelements(tensor));
  std::vector<float> numbers(count);
  if (tensor->type == GGML_TYPE_F32) {
    const auto* data = static_cast<const float*>(tensor->data);
    numbers.assign(data, data + count);
  } else if (const auto to_float = ggml_get_type_traits(tensor->type)->to_float) {
    to_float(tensor->data, numbers.data(), static_cast<std::int64_t>(count));
  } else {
    numbers.clear();
  }
  return numbers;
}

Status write_float_model(const std::string& from, FloatWeights weights, const std::string& to) {
  KVSPAN_TRY(const auto file, GgufFile::open(from));
  ggml_context* raw_tensors = nullptr;
  const std::unique_ptr<gguf_context, FreeGguf> source(
      gguf_init_from_file(from.c_str(), {/*no_alloc=*/true, &raw_tensors}));
  const std::unique_ptr<ggml_context, FreeTensors> source_tensors(raw_tensors);
  const std::unique_ptr<gguf_context, FreeGguf> out(gguf_init_empty());
  gguf_set_kv(out.get(), source.get());
  const std::int64_t count = gguf_get_n_tensors(source.get());
  const std::unique_ptr<ggml_context, FreeTensors> tensors(
      ggml_init({static_cast<std::size_t>(count + 1) * ggml_tensor_overhead(), nullptr, true}));
  std::vector<std::vector<float>> data(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    const char* name = gguf_get_tensor_name(source.get(), i);
    const ggml_tensor* tensor = file->find_tensor(name);
    auto& numbers = data[static_cast<std::size_t>(i)];
    numbers = floats_of(tensor);
    if (numbers.empty()) {
      return fail(ErrorCode::kUnsupported, "'{}': tensor '{}' of type {} cannot be read as f32",
                  from, name, ggml_type_name(tensor->type));
    }
    const bool narrow = weights == FloatWeights::kF16 && ggml_n_dims(tensor) > 1;
    ggml_tensor* copy = ggml_new_tensor(tensors.get(), narrow ? GGML_TYPE_F16 : GGML_TYPE_F32,
                                        ggml_n_dims(tensor), tensor->ne);
    if (narrow) narrow_in_place(numbers);
    ggml_set_name(copy, name);
    copy->data = numbers.data();
    gguf_add_tensor(out.get(), copy);
  }
  const std::string temporary = to + ".part";
  if (!gguf_write_to_file(out.get(), temporary.c_str(), false) ||
      std::rename(temporary.c_str(), to.c_str()) != 0) {
    std::remove(temporary.c_str());
    return fail(ErrorCode::kIo, "cannot write '{}'", to);
  }
  return {};
}

}  // namespace kvspan
