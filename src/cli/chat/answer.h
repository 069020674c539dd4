// SPDX-License-Identifier: Apache-2.0
// Reading a prompt and answering it, with the numbers that every command reports.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "cli/output/json_output.h"
#include "cli/session.h"
#include "llama/generate.h"

namespace kvspan::cli {

struct Answer {
  Generation generation;
  std::string recipe;             // canonical
  std::string code;               // which code is in use; "" where there is none
  std::size_t kv_bytes = 0;       // held by the cache, without what a model's sequences share
  std::size_t kv_bytes_full = 0;  // the same tokens in f16
  std::size_t kv_bytes_shared = 0;
  std::int32_t cache_tokens = 0;
  std::size_t prompt_tokens = 0;  // the whole prompt
  std::size_t read_tokens = 0;    // its part that was not in the cache before
  double read_seconds = 0.0;
  std::size_t decoded_tokens = 0;  // read after the prompt
  double decode_seconds = 0.0;
};

// `prompt` is the whole sequence; the cache holds its first cache->tokens() tokens, fewer than all.
// Progress goes to standard error, the text to `stream` piece by piece. A cancelled answer is an
// answer; one cancelled while the prompt is read has no tokens.
Result<Answer> answer_prompt(Session& session, std::span<const Token> prompt, Sampler& sampler,
                             const GenerateOptions& options,
                             const std::function<void(std::string_view)>& stream);

// Brings bytes, tokens and recipe of `answer` up to what the cache holds now.
void measure_cache(const Session& session, Answer& answer);

// recipe, kv_bytes, kv_bytes_full, kv_ratio, prefill_tok_s, decode_tok_s, tokens, stop, text, ...
Json to_json(const Answer& answer);
// "24 + 80 tokens | prefill 152.1 tok/s | decode 48.2 tok/s | KV 2.3 MiB, f16 / KV = 1.00x | ..."
std::string stats_line(const Answer& answer);
// A prompt that was partly in the cache shows as "24 (7 read) + 80 tokens".
// stats_line on standard error, dimmed on a terminal.
void print_stats(const Answer& answer);

}  // namespace kvspan::cli
