// SPDX-License-Identifier: Apache-2.0
#include "cli/chat/make_room.h"

#include <algorithm>

namespace kvspan::cli {

std::vector<Token> without_middle(std::span<const Token> tokens, std::size_t most) {
  if (tokens.size() <= most) return {tokens.begin(), tokens.end()};
  const std::size_t first = most / 4;
  const auto head = tokens.first(first), tail = tokens.last(most - first);
  std::vector<Token> kept(head.begin(), head.end());
  kept.insert(kept.end(), tail.begin(), tail.end());
  return kept;
}

std::size_t shortened_length(std::int32_t context) noexcept {
  return static_cast<std::size_t>(std::max(context / 2, 1));
}

std::size_t room_for_answer(std::int32_t context, std::int32_t max_tokens) noexcept {
  return static_cast<std::size_t>(std::clamp(max_tokens, 0, context / 4));
}

}  // namespace kvspan::cli
