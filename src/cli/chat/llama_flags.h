// SPDX-License-Identifier: Apache-2.0
// Flags that llama.cpp's users type and that mean something else here, or little: they are taken,
// and what they do is said. And those of RoPE, which mean the same.
#pragma once

#include <cstdint>
#include <string>

#include "cli/flags.h"
#include "llama/engine.h"

namespace kvspan::cli {

struct LlamaFlags {
  std::string key_type;  // f16, q8_0, q4_0; "": not given
  std::string value_type;
  std::string flash_attention;
  std::string rope_scaling;   // none, linear, yarn; "": the model's
  float rope_stretch = 0.0f;  // 0: not given; context is stretched by this
  RopeOptions rope;           // but for what the two above become

  // The recipe that the types of keys and values ask for; "": none. Fails where there is none.
  Result<std::string> recipe() const;
  RopeOptions rope_options() const;
  // Whether anything about RoPE was given, so that the context may exceed the trained one.
  bool changes_rope() const;
};
// After add_engine_flags: --cache excludes the types.
void add_llama_flags(CLI::App& app, LlamaFlags& flags);

}  // namespace kvspan::cli
