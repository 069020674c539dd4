// SPDX-License-Identifier: Apache-2.0
// From text to the tokens of a prompt.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "llama/tokenizer.h"

namespace kvspan::cli {

// Special tokens written out in a prompt are those tokens, as in llama.cpp: in a rendered chat
// template they have to be.
Result<std::vector<Token>> encode_prompt(const Tokenizer& tokenizer, const std::string& text);

// A question with an optional system message, through the model's chat template where it has one.
// `raw` takes the text as it is. Fails when a system message has no template to go into.
Result<std::vector<Token>> encode_question(const Tokenizer& tokenizer, const std::string& text,
                                           const std::string& system, bool raw);

// The whole conversation, ending where the answer begins (`open_answer`) or after its last message.
// Without a chat template: the messages one after the other.
Result<std::vector<Token>> encode_conversation(const Tokenizer& tokenizer,
                                               std::span<const ChatMessage> messages,
                                               bool open_answer);

// How many leading tokens two sequences share.
std::size_t common_prefix(std::span<const Token> a, std::span<const Token> b) noexcept;

}  // namespace kvspan::cli
