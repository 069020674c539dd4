// SPDX-License-Identifier: Apache-2.0
// A LoRA adapter of random numbers for the query projections of stories260K, in a temporary file.
#pragma once

#include <ggml.h>
#include <gguf.h>

#include <cstdio>
#include <memory>
#include <random>
#include <string>

namespace kvspan::testing {

class RandomAdapter {
 public:
  explicit RandomAdapter(const std::string& path) : path_(path) {
    const std::unique_ptr<ggml_context, void (*)(ggml_context*)> memory(
        ggml_init({std::size_t{1} << 20, nullptr, false}), ggml_free);
    const std::unique_ptr<gguf_context, void (*)(gguf_context*)> file(gguf_init_empty(), gguf_free);
    gguf_set_val_str(file.get(), "general.type", "adapter");
    gguf_set_val_str(file.get(), "general.architecture", "llama");
    gguf_set_val_str(file.get(), "adapter.type", "lora");
    gguf_set_val_f32(file.get(), "adapter.lora.alpha", 8.0f);
    std::mt19937 random(17);
    const auto add = [&](const std::string& name, std::int64_t in, std::int64_t out) {
      ggml_tensor* tensor = ggml_new_tensor_2d(memory.get(), GGML_TYPE_F32, in, out);
      ggml_set_name(tensor, name.c_str());
      std::normal_distribution<float> normal(0.0f, 0.2f);
      for (std::int64_t i = 0; i < in * out; ++i) ggml_get_data_f32(tensor)[i] = normal(random);
      gguf_add_tensor(file.get(), tensor);
    };
    for (int layer = 0; layer < kLayers; ++layer) {
      const std::string name = "blk." + std::to_string(layer) + ".attn_q.weight.";
      add(name + "lora_a", kHidden, kRank);
      add(name + "lora_b", kRank, kHidden);
    }
    written_ = gguf_write_to_file(file.get(), path.c_str(), /*only_meta=*/false);
  }
  ~RandomAdapter() { std::remove(path_.c_str()); }
  RandomAdapter(const RandomAdapter&) = delete;
  RandomAdapter& operator=(const RandomAdapter&) = delete;

  bool written() const { return written_; }
  const std::string& path() const { return path_; }

 private:
  static constexpr int kLayers = 5, kHidden = 64, kRank = 4;
  std::string path_;
  bool written_ = false;
};

}  // namespace kvspan::testing
