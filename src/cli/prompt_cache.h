// SPDX-License-Identifier: Apache-2.0
// A cache in a file, with the tokens that it holds (docs/reference/formats/prompt_cache.md): what
// was read once need not be read again. The file is the old one or the new one, whenever the writer
// ends.
#pragma once

#include <span>
#include <string>

#include "cli/prompt_cache_bytes.h"
#include "cli/session.h"
#include "kvspan/result.h"

namespace kvspan::cli {

// Of the session's cache, which holds `tokens`. kInvalidArgument if `path` is a file that is no
// prompt cache: it stays.
Status save_prompt_cache(const std::string& path, const Session& session,
                         std::span<const Token> tokens);
// Removes the file if it is there, under the same condition.
Status remove_prompt_cache(const std::string& path);
// kNotFound where there is no file; kUnsupported, naming which, where it is of another model,
// recipe or calibration; kCorruptData where it is damaged; kInvalidArgument where it is no such
// file at all.
Result<PromptCache> load_prompt_cache(const std::string& path, const Session& session);

// Puts what `path` holds of the beginning of `prompt` into the session's cache, which is empty,
// reads the rest of the prompt up to its last token, and saves that there. A file that cannot be
// used is said on standard error and replaced, unless it is something else.
struct PromptRead {
  std::size_t tokens = 0;  // that the file did not have
  double seconds = 0.0;
};
Result<PromptRead> read_with_prompt_cache(const std::string& path, Session& session,
                                          std::span<const Token> prompt);

}  // namespace kvspan::cli
