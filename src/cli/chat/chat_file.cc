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
  if (!json.is_object() || json.value("format", Json()) != kFormat) {
    return wrong(fmt::format("\"format\" is not \"{}\"", kFormat));
  }
  if (json.value("version", Json()) != kVersion) {
    return wrong(fmt::format("\"version\" is not {}", kVersion));
  }
  const Json list = json.value("messages", Json());
  if (!list.is_array()) return wrong("\"messages\" is not an array");
  std::vector<ChatMessage> messages;
  for (const Json& entry : list) {
    const std::string where = fmt::format("messages[{}]", messages.size());
    const Json role = entry.is_object() ? entry.value("role", Json()) : Json();
    const Json content = entry.is_object() ? entry.value("content", Json()) : Json();
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
