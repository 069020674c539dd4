// SPDX-License-Identifier: Apache-2.0
// Reading a prompt and answering it, with the numbers that every command reports.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

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
  std::size_t decoded_tokens = 0;    // read after the prompt
  std::size_t dropped_messages = 0;  // of a conversation, because the context was full
  std::size_t cut_tokens = 0;        // of a prompt that was too long, out of its middle
  std::size_t shifts = 0;            // how often a full context was shortened meanwhile
  std::vector<Token> held;           // the tokens that are in the cache now
  double decode_seconds = 0.0;
};

// What a sequence becomes when the context is full: given all tokens of the answer so far, a
// shorter sequence that ends with its last ones.
using Shorten = std::function<Result<std::vector<Token>>(std::span<const Token> answer)>;

// `prompt` is the whole sequence; the cache holds its first cache->tokens() tokens, fewer than all.
// Progress goes to standard error, the text to `stream` piece by piece. A cancelled answer is an
// answer; one cancelled while the prompt is read has no tokens. Without `shorten` an answer ends
// where the context does.
Result<Answer> answer_prompt(Session& session, std::span<const Token> prompt, Sampler& sampler,
                             const GenerateOptions& options,
                             const std::function<void(std::string_view)>& stream,
                             const Shorten& shorten = nullptr);

// Brings bytes, tokens and recipe of `answer` up to what the cache holds now.
void measure_cache(const Session& session, Answer& answer);

// recipe, kv_bytes, kv_bytes_full, kv_ratio, prefill_tok_s, decode_tok_s, tokens, stop, text, ...
Json to_json(const Answer& answer);
// "KV 2.3 MiB, f16 / KV = 6.12x"; a text too short to save anything, and `full`, have other words.
std::string kv_text(const Answer& answer);
// "24 + 80 tokens | prefill 152.1 tok/s | decode 48.2 tok/s | KV 2.3 MiB, f16 / KV = 6.12x | ..."
std::string stats_line(const Answer& answer);
// A prompt that was partly in the cache shows as "24 (7 read) + 80 tokens".
// stats_line on standard error, dimmed on a terminal.
void print_stats(const Answer& answer);

}  // namespace kvspan::cli
