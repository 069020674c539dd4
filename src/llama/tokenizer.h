// SPDX-License-Identifier: Apache-2.0
// Text to tokens and back, special tokens and the chat template, as libllama reads them from the
// model's GGUF file. Immutable; safe to share between threads.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "llama/chat_template.h"
#include "llama/engine.h"

namespace kvspan {

class Tokenizer {
 public:
  // `chat_template` replaces the file's (llama/chat_template.h).
  static Result<std::unique_ptr<Tokenizer>> open(const std::string& path,
                                                 const std::string& chat_template = {});
  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  struct EncodeOptions {
    bool add_special = true;     // begin-of-text where the model wants it
    bool parse_special = false;  // "<|im_end|>" in the text is that token, not its characters
  };
  // Fails on invalid UTF-8, naming the byte.
  Result<std::vector<Token>> encode(std::string_view text, const EncodeOptions& options) const;
  // Bytes of one token; may be part of a character. Special tokens give nothing unless asked for.
  std::string piece(Token token, bool show_special = false) const;
  std::string decode(std::span<const Token> tokens, bool show_special = false) const;

  bool is_end(Token token) const noexcept;  // end of text, turn or message
  std::int32_t size() const noexcept;

  // Whether the file carries a chat template, or one was chosen.
  bool has_chat_template() const noexcept;
  // The whole conversation as the model expects it; `open_answer` ends with the assistant's prefix.
  Result<std::string> apply_chat_template(std::span<const ChatMessage> messages,
                                          bool open_answer) const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Byte offset of the first byte that is not part of valid UTF-8, or npos.
std::size_t find_invalid_utf8(std::string_view text) noexcept;

// Bytes at the end of `text` that begin a character whose rest is still to come (0..3).
std::size_t incomplete_utf8_tail(std::string_view text) noexcept;

}  // namespace kvspan
