// SPDX-License-Identifier: Apache-2.0
// The loaders named in table.cc, one per file of this folder.
#pragma once

#include <memory>

#include "model/architecture.h"

namespace kvspan {

Result<std::unique_ptr<Architecture>> load_llama(const GgufFile& file);
Result<std::unique_ptr<Architecture>> load_gemma3(const GgufFile& file);
Result<std::unique_ptr<Architecture>> load_qwen2(const GgufFile& file);
Result<std::unique_ptr<Architecture>> load_qwen3(const GgufFile& file);
Result<std::unique_ptr<Architecture>> load_gpt2(const GgufFile& file);
Result<std::unique_ptr<Architecture>> load_gptneox(const GgufFile& file);
Result<std::unique_ptr<Architecture>> load_gptneo(const GgufFile& file);

}  // namespace kvspan
