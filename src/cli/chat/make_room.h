// SPDX-License-Identifier: Apache-2.0
// A context that is full is no end: what is in the middle goes. The beginning stays, on which
// models rest much attention (Xiao et al. 2023) and where the system message is, and so does the
// latest.
#pragma once

#include <span>
#include <vector>

#include "llama/tokenizer.h"

namespace kvspan::cli {

// `tokens` shortened to `most`: the first quarter of these from the beginning, the rest from the
// end. Those that fit are left as they are.
std::vector<Token> without_middle(std::span<const Token> tokens, std::size_t most);

// Tokens that a sequence is shortened to where `context` is full: half of it, so that reading them
// again happens seldom.
std::size_t shortened_length(std::int32_t context) noexcept;
// Tokens of the context that a prompt leaves to its answer of at most `max_tokens`: no more than a
// quarter of the context.
std::size_t room_for_answer(std::int32_t context, std::int32_t max_tokens) noexcept;

}  // namespace kvspan::cli
