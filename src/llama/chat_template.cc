// SPDX-License-Identifier: Apache-2.0
#include "llama/chat_template.h"

#include <chat.h>

#include <algorithm>
#include <vector>

#include "base/fail.h"
#include "base/spelling.h"

namespace kvspan {
namespace {

constexpr std::size_t kExcerpt = 60;  // bytes of a refused template that an error shows

// What the library throws, as the reason; memory that is not there stays an exception.
template <class Call>
std::string reason_of_failure(const Call& call) {
  try {
    call();
    return {};
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    return *error.what() != '\0' ? error.what() : "without a reason";
  }
}

std::vector<std::string> known_names() {
  std::vector<const char*> names(256);
  const std::int32_t count = llama_chat_builtin_templates(names.data(), names.size());
  names.resize(static_cast<std::size_t>(std::clamp(count, 0, 256)));
  return {names.begin(), names.end()};
}

}  // namespace

struct ChatTemplate::Impl {
  bool exists = false;
  bool named = false;  // one of libllama's own, which are no Jinja
  std::string refused;
  common_chat_templates_ptr templates;
};

ChatTemplate::ChatTemplate(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ChatTemplate::~ChatTemplate() = default;

Result<std::unique_ptr<ChatTemplate>> ChatTemplate::make(const llama_model* model,
                                                         const std::string& choice) {
  auto impl = std::make_unique<Impl>();
  const char* own = llama_model_chat_template(model, nullptr);
  const std::string text = !choice.empty() || own == nullptr ? choice : own;
  impl->exists = !text.empty();
  if (!choice.empty()) {
    const std::vector<std::string> names = known_names();
    impl->named = std::find(names.begin(), names.end(), choice) != names.end();
    // Text without a brace would be an answer to nothing: a name that was mistyped.
    if (!impl->named && choice.find('{') == std::string::npos) {
      return fail(ErrorCode::kInvalidArgument,
                  "chat-template '{}' is not known; allowed: a Jinja template, or {}{}", choice,
                  fmt::join(names, ", "), did_you_mean(choice, names));
    }
  }
  if (impl->exists) {
    impl->refused =
        reason_of_failure([&] { impl->templates = common_chat_templates_init(model, choice); });
    // The reason was lost on the way here.
    if (!impl->refused.empty()) {
      impl->refused = reason_of_failure([&] { common_chat_template(text, "", ""); });
    }
  }
  if (!choice.empty() && !impl->refused.empty()) {
    return fail(ErrorCode::kInvalidArgument,
                "chat-template '{}' cannot be read: {}; allowed: a Jinja template",
                choice.substr(0, kExcerpt), impl->refused);
  }
  return std::unique_ptr<ChatTemplate>(new ChatTemplate(std::move(impl)));
}

bool ChatTemplate::exists() const noexcept {
  return impl_->exists;
}

Result<std::string> ChatTemplate::render(std::span<const ChatMessage> messages,
                                         bool open_answer) const {
  if (!impl_->exists) return fail(ErrorCode::kUnsupported, "the model has no chat template");
  if (!impl_->refused.empty()) {
    return fail(ErrorCode::kUnsupported, "the model's chat template cannot be read: {}",
                impl_->refused);
  }
  common_chat_templates_inputs inputs;
  inputs.add_generation_prompt = open_answer;
  inputs.use_jinja = !impl_->named;
  inputs.force_pure_content = true;  // the text alone: no parser of tool calls is wanted
  for (const ChatMessage& message : messages) {
    common_chat_msg& added = inputs.messages.emplace_back();
    added.role = message.role;
    added.content = message.content;
  }
  std::string text;
  const std::string reason = reason_of_failure(
      [&] { text = common_chat_templates_apply(impl_->templates.get(), inputs).prompt; });
  if (reason.empty()) return text;
  return fail(ErrorCode::kUnsupported, "the chat template refused the conversation: {}", reason);
}

}  // namespace kvspan
