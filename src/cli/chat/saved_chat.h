// SPDX-License-Identifier: Apache-2.0
// A conversation in a file, FILE, and its cache beside it, FILE.kv: a book that was read once is
// there again at once. Each is the old file or the new one, whenever the writer ends; of the cache
// only what agrees with the conversation is used.
#pragma once

#include <string>

#include "cli/chat/chat_commands.h"
#include "kvspan/result.h"

namespace kvspan::cli {

// Whether a file that holds another conversation is replaced.
enum class Replace { kNever, kConversation };

// A file that holds no conversation is never replaced, and one that is this conversation's own
// (chat.file) always is. A cache that cannot be saved is said on standard error; the conversation is
// saved all the same.
Status save_chat(const std::string& path, Chat& chat, Replace replace);
// Reads into the cache what FILE.kv does not hold, or all where that cannot be used, which is said
// unless there is none.
Status load_chat(const std::string& path, Chat& chat);

}  // namespace kvspan::cli
