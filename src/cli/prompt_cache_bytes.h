// SPDX-License-Identifier: Apache-2.0
// The bytes of a prompt cache (docs/reference/formats/prompt_cache.md), apart from files and models.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/byte_stream.h"
#include "kvspan/cache.h"
#include "kvspan/result.h"
#include "llama/tokenizer.h"

namespace kvspan::cli {

struct PromptCache {
  std::vector<Token> tokens;
  std::unique_ptr<KvCache> cache;  // holds these, in the host's memory
};

inline constexpr std::string_view kPromptCacheMagic = "KVSPPRMT";
// Whether the bytes begin as a prompt cache does, damaged or not.
bool starts_as_prompt_cache(std::span<const std::byte> bytes);
// Of the model with this fingerprint; `cache` holds `tokens`.
Status write_prompt_cache(const std::string& fingerprint, const KvCache& cache, std::span<const Token> tokens,
                          const ByteWriter::Sink& sink);
// kUnsupported, naming which, if they are of another model or recipe than `caches`; kCorruptData if they are damaged.
Result<PromptCache> read_prompt_cache(std::span<const std::byte> bytes, const std::string& fingerprint,
                                      const CacheFactory& caches);

}  // namespace kvspan::cli
