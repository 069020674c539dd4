// SPDX-License-Identifier: Apache-2.0
#include "eval/perplexity/windows.h"

#include <algorithm>
#include <optional>

#include "base/fail.h"

namespace kvspan {
namespace {

// The begin-of-text token, where the model's texts start with one.
Result<std::optional<Token>> begin_token(const Tokenizer& tokenizer) {
  KVSPAN_TRY(const auto with, tokenizer.encode("a", {.add_special = true}));
  KVSPAN_TRY(const auto without, tokenizer.encode("a", {.add_special = false}));
  if (with.size() <= without.size() || with.front() == without.front()) {
    return std::optional<Token>();
  }
  return std::optional<Token>(with.front());
}

}  // namespace

Result<std::vector<std::vector<Token>>> cut_windows(const Tokenizer& tokenizer,
                                                    std::string_view text,
                                                    const WindowOptions& options) {
  KVSPAN_TRY(const auto begin, begin_token(tokenizer));
  KVSPAN_TRY(const auto tokens, tokenizer.encode(text, {}));
  std::vector<std::vector<Token>> windows;
  for (std::size_t at = 0; at < tokens.size(); at += options.length) {
    if (options.most > 0 && windows.size() == options.most) break;
    const std::size_t length = std::min(options.length, tokens.size() - at);
    if (length < options.length && (options.least == 0 || length < options.least)) break;
    const auto first = tokens.begin() + static_cast<std::ptrdiff_t>(at);
    windows.emplace_back(first, first + static_cast<std::ptrdiff_t>(length));
    if (begin) windows.back().front() = *begin;
  }
  if (windows.empty()) {
    return fail(ErrorCode::kInvalidArgument, "the text has {} tokens; a window takes {}",
                tokens.size(), options.least > 0 ? options.least : options.length);
  }
  return windows;
}

}  // namespace kvspan
