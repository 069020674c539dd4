// SPDX-License-Identifier: Apache-2.0
#include "cli/chat/saved_chat.h"

#include <utility>

#include "base/fail.h"
#include "cli/chat/chat_file.h"
#include "cli/prompt_cache.h"
#include "io/atomic_file.h"
#include "io/folder_files.h"

namespace kvspan::cli {
namespace {

// Far beyond any context.
constexpr std::size_t kChatFileLimit = std::size_t{64} << 20;

Result<std::vector<ChatMessage>> read_chat(const std::string& path) {
  KVSPAN_TRY(const auto bytes, read_file(path, kChatFileLimit));
  auto messages = chat_from_json({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  if (!messages) return fail(messages.error().code, "'{}' is {}", path, messages.error().message);
  return messages;
}

Status check_replaced(const std::string& path, const Chat& chat, Replace replace) {
  if (!file_exists(path)) return {};  // devices and pipes are written to
  const auto there = read_chat(path);
  if (!there) {
    return fail(ErrorCode::kInvalidArgument, "{}; not overwritten", there.error().message);
  }
  if (path == chat.file || replace == Replace::kConversation) return {};
  return fail(ErrorCode::kInvalidArgument,
              "'{0}' holds another conversation; /save! {0} replaces it", path);
}

}  // namespace

Status save_chat(const std::string& path, Chat& chat, Replace replace) {
  KVSPAN_CHECK_OK(check_replaced(path, chat, replace));
  KVSPAN_CHECK_OK(write_file(path, chat_to_json(chat.conversation.messages(), chat.model)));
  chat.file = path;
  const std::vector<Token>& held = chat.conversation.held();
  const std::string cache_path = path + ".kv";
  // One that is there is of another conversation, or of this one earlier.
  const Status status = held.empty() ? remove_prompt_cache(cache_path)
                                     : save_prompt_cache(cache_path, chat.session, held);
  if (!status) fmt::print(stderr, "the cache is not saved: {}\n", status.error().message);
  return {};
}

Status load_chat(const std::string& path, Chat& chat) {
  KVSPAN_TRY(auto messages, read_chat(path));
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
  chat.file = path;
  return chat.conversation.restore(std::move(messages));
}

}  // namespace kvspan::cli
