// SPDX-License-Identifier: Apache-2.0
#include "cli/chat/saved_chat.h"

#include <cstdio>
#include <utility>

#include "base/fail.h"
#include "cli/chat/chat_file.h"
#include "cli/prompt_cache.h"
#include "io/atomic_file.h"

namespace kvspan::cli {
namespace {

// Far beyond any context.
constexpr std::size_t kChatFileLimit = std::size_t{64} << 20;

}  // namespace

Status save_chat(const std::string& path, Chat& chat) {
  KVSPAN_CHECK_OK(write_file(path, chat_to_json(chat.conversation.messages(), chat.model)));
  const std::vector<Token>& held = chat.conversation.held();
  const std::string cache_path = path + ".kv";
  if (held.empty()) {
    std::remove(cache_path.c_str());  // of another conversation
    return {};
  }
  if (const Status status = save_prompt_cache(cache_path, chat.session, held); !status) {
    fmt::print(stderr, "the cache is not saved: {}\n", status.error().message);
  }
  return {};
}

Status load_chat(const std::string& path, Chat& chat) {
  KVSPAN_TRY(const auto bytes, read_file(path, kChatFileLimit));
  auto messages = chat_from_json({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  if (!messages) return fail(messages.error().code, "'{}' is {}", path, messages.error().message);
  auto cache = load_prompt_cache(path + ".kv", chat.session);
  if (cache) {
    auto own = chat.session.caches->brought_home(std::move(cache->cache));
    if (own) {
      chat.conversation.adopt({std::move(cache->tokens), *std::move(own)});
    } else {
      fmt::print(stderr, "{}; the conversation is read again\n", own.error().message);
    }
  } else if (cache.error().code != ErrorCode::kNotFound) {
    fmt::print(stderr, "{}; the conversation is read again\n", cache.error().message);
  }
  return chat.conversation.restore(*std::move(messages));
}

}  // namespace kvspan::cli
