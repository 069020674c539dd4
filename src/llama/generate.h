// SPDX-License-Identifier: Apache-2.0
// The decoding loop: sample, stream, stop. Prompt reading is Engine::prefill's.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "llama/engine.h"
#include "llama/sampler.h"
#include "llama/speculative.h"
#include "llama/tokenizer.h"

namespace kvspan {

enum class StopReason { kEndToken, kStopString, kLength, kContext, kCancelled };
std::string_view name_of(StopReason reason) noexcept;

struct GenerateOptions {
  std::int32_t max_tokens = 256;
  std::int32_t context = 0;  // most tokens in the cache; 0: the model's
  std::vector<std::string> stop;
  // Asked with the text so far after every token, if there; true ends the answer (kStopString).
  std::function<bool(const std::string& text)> enough{};
  // Asked where the context is full, if there: leaves a cache that ends with the answer's tokens
  // but the last, and is shorter. Where there is none, the answer ends (kContext).
  std::function<Status(std::span<const Token> answer)> make_room{};
  Draft* draft = nullptr;  // guesses ahead, if there; it has read the prompt (Draft::start)
};

struct Generation {
  std::string text;
  std::vector<Token> tokens;  // those sampled, the end token included
  StopReason reason = StopReason::kLength;
  std::size_t guessed = 0;  // tokens of the draft that were checked
  std::size_t right = 0;    // of those, the ones that were chosen
};

// Continues from logits(0) of the engine's last decode on `cache`. `stream` gets the text as it
// becomes certain: whole characters, never a part of a stop string. Every token of the result but
// the last is in the cache. Cancellation ends the answer, it is not an error.
// With a draft the cache takes wrong guesses back: this fails where its recipe cannot, as it has
// dropped tokens because of them. Once room was made, the draft is not asked again.
Result<Generation> generate(Engine& engine, const Tokenizer& tokenizer, KvCache& cache,
                            Sampler& sampler, const GenerateOptions& options,
                            const std::function<void(std::string_view)>& stream);

}  // namespace kvspan
