// SPDX-License-Identifier: Apache-2.0
// The loaders named in table.cc, one per file of this folder.
#pragma once

#include <memory>

#include "model/architecture.h"

namespace kvspan {

Result<std::unique_ptr<Architecture>> load_llama(GgufFile& file);
Result<std::unique_ptr<Architecture>> load_gemma3(GgufFile& file);
Result<std::unique_ptr<Architecture>> load_qwen2(GgufFile& file);
Result<std::unique_ptr<Architecture>> load_qwen3(GgufFile& file);
Result<std::unique_ptr<Architecture>> load_gpt2(GgufFile& file);
Result<std::unique_ptr<Architecture>> load_gptneox(GgufFile& file);
Result<std::unique_ptr<Architecture>> load_gptneo(GgufFile& file);

}  // namespace kvspan
