// SPDX-License-Identifier: Apache-2.0
// A conversation as the text that a model was trained on: the Jinja template of its file, or one
// that the user chose, through llama.cpp's common library. Immutable; safe to share between
// threads.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "kvspan/result.h"

struct llama_model;

namespace kvspan {

struct ChatMessage {
  std::string role;  // "system", "user" or "assistant"
  std::string content;
};

class ChatTemplate {
 public:
  // `choice` is a Jinja template, or the name of one that libllama knows; "" is the model's own.
  // Fails on a choice that is neither. The model's own may be none, or one that cannot be read,
  // which render() tells.
  static Result<std::unique_ptr<ChatTemplate>> make(const llama_model* model,
                                                    const std::string& choice);
  ~ChatTemplate();

  // Whether there is one.
  bool exists() const noexcept;
  // Fails with the template's reason where it refuses the conversation. A begin-of-text token that
  // encoding the text would add is left out.
  Result<std::string> render(std::span<const ChatMessage> messages, bool open_answer) const;

 private:
  struct Impl;
  explicit ChatTemplate(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvspan
