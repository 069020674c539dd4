// SPDX-License-Identifier: Apache-2.0
#include "cli/chat/chat_file.h"

#include "base/fail.h"
#include "cli/output/json_output.h"

namespace kvspan::cli {
namespace {

constexpr const char* kFormat = "kvspan-chat";
constexpr int kVersion = 1;

Error wrong(const std::string& what) {
  return fail(ErrorCode::kCorruptData, "not a saved conversation: {}", what);
}

// A member, null if there is none. A reference: copies of JSON that is nested without end would
// exhaust the stack.
const Json& member(const Json& json, const char* key) {
  static const Json kNull;
  const auto found = json.find(key);
  return found == json.end() ? kNull : *found;
}

bool known_role(const std::string& role) {
  return role == "system" || role == "user" || role == "assistant";
}

}  // namespace

std::string chat_to_json(std::span<const ChatMessage> messages, const std::string& model) {
  Json list = Json::array();
  for (const ChatMessage& message : messages) {
    list.push_back({{"role", message.role}, {"content", message.content}});
  }
  const Json json{{"format", kFormat}, {"version", kVersion}, {"model", model}, {"messages", list}};
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

Result<std::vector<ChatMessage>> chat_from_json(std::string_view text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return wrong("it is not JSON");
  if (!json.is_object() || member(json, "format") != kFormat) {
    return wrong(fmt::format("\"format\" is not \"{}\"", kFormat));
  }
  if (member(json, "version") != kVersion) {
    return wrong(fmt::format("\"version\" is not {}", kVersion));
  }
  const Json& list = member(json, "messages");
  if (!list.is_array()) return wrong("\"messages\" is not an array");
  std::vector<ChatMessage> messages;
  for (const Json& entry : list) {
    const std::string where = fmt::format("messages[{}]", messages.size());
    const Json& role = member(entry, "role");
    const Json& content = member(entry, "content");
    if (!role.is_string() || !known_role(role.get<std::string>())) {
      return wrong(where + " has no role \"system\", \"user\" or \"assistant\"");
    }
    if (!content.is_string()) return wrong(where + " has no text as \"content\"");
    messages.push_back({role.get<std::string>(), content.get<std::string>()});
    if (messages.back().content.find('\0') != std::string::npos) return wrong(where + " has a NUL");
  }
  return messages;
}

}  // namespace kvspan::cli
