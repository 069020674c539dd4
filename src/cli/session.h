// SPDX-License-Identifier: Apache-2.0
// A model opened for use: engine, tokenizer, an empty cache, and the context agreed on.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "cli/calibration.h"
#include "cli/chat/answer_flags.h"
#include "cli/flags.h"
#include "kvspan/cache.h"
#include "llama/engine.h"
#include "llama/speculative.h"
#include "llama/tokenizer.h"

namespace kvspan::cli {

struct Session {
  std::unique_ptr<Engine> engine;  // stops when interrupted() is set
  std::unique_ptr<Tokenizer> tokenizer;
  std::optional<CacheFactory> caches;  // that make the cache; set once it is open
  std::unique_ptr<KvCache> cache;
  std::unique_ptr<Draft> draft;  // null: none
  std::int32_t context = 0;      // most tokens in the cache
  std::string note;  // why the cache is what it is, where that should be said; else empty
  CodeNote code;     // what was said of the cache's code

  // Another cache, empty, in place of the one that there is.
  Status use_recipe(const std::string& recipe);
  // With -v, says on standard error which code the cache uses, where that is news.
  void say_code();
};

// Resolves the model, forces the CPU level, loads. Fails when -c exceeds the model's context.
Result<Session> open_session(const ModelFlags& flags, const CompanionFlags& companions = {});

// Fails, with both numbers, when a prompt exceeds the context or has no tokens.
Status check_prompt_length(std::size_t tokens, const Session& session);

}  // namespace kvspan::cli
