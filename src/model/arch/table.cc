// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "base/fail.h"
#include "model/arch/architectures.h"

namespace kvspan {
namespace {

constexpr std::array kArchitectures{
    ArchitectureInfo{"llama", "Llama 2 and 3, TinyLlama, SmolLM2, LongChat, Mistral", load_llama},
    ArchitectureInfo{"gemma3", "Gemma 3 (text)", load_gemma3},
    ArchitectureInfo{"qwen2", "Qwen 2 and 2.5", load_qwen2},
    ArchitectureInfo{"qwen3", "Qwen 3 (dense)", load_qwen3},
    ArchitectureInfo{"gpt2", "GPT-2", load_gpt2},
    ArchitectureInfo{"gptneox", "GPT-NeoX, Pythia", load_gptneox},
    ArchitectureInfo{"gptneo", "GPT-Neo", load_gptneo},
};

}  // namespace

std::span<const ArchitectureInfo> all_architectures() noexcept {
  return kArchitectures;
}

Result<std::unique_ptr<Architecture>> load_architecture(GgufFile& file) {
  KVSPAN_TRY(const std::string name, file.require_string("general.architecture"));
  std::string supported;
  for (const ArchitectureInfo& info : kArchitectures) {
    if (info.name == name) return info.load(file);
    supported += (supported.empty() ? "" : ", ") + std::string(info.name);
  }
  return fail(ErrorCode::kUnsupported, "'{}' has architecture '{}'; supported: {}", file.path(),
              name, supported);
}

}  // namespace kvspan
