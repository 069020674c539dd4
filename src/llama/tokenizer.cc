// SPDX-License-Identifier: Apache-2.0
#include "llama/tokenizer.h"

#include <llama-cpp.h>

#include <algorithm>

#include "base/fail.h"
#include "llama/ggml_log.h"
#include "llama/gguf_file.h"

namespace kvspan {

struct Tokenizer::Impl {
  llama_model_ptr model;
  const llama_vocab* vocab = nullptr;
  std::unique_ptr<ChatTemplate> chat_template;
};

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;

Result<std::unique_ptr<Tokenizer>> Tokenizer::open(const std::string& path,
                                                   const std::string& chat_template) {
  // Checked by our own reader first: its errors name what is wrong with the file. The weights,
  // which an engine may have mapped already, stay where they are.
  KVSPAN_TRY(const auto file, GgufFile::open(path));
  KVSPAN_CHECK_OK(file->require_string("general.architecture"));
  llama_model_params params = llama_model_default_params();
  params.vocab_only = true;
  GgmlLogCapture log;
  auto impl = std::make_unique<Impl>();
  impl->model.reset(llama_model_load_from_file(path.c_str(), params));
  if (!impl->model) {
    return fail(ErrorCode::kCorruptData, "cannot read the vocabulary of '{}': {}", path,
                log.reason().empty() ? "libllama gave no reason" : log.reason());
  }
  impl->vocab = llama_model_get_vocab(impl->model.get());
  KVSPAN_TRY(impl->chat_template, ChatTemplate::make(impl->model.get(), chat_template));
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::move(impl)));
}

Result<std::vector<Token>> Tokenizer::encode(std::string_view text,
                                             const EncodeOptions& options) const {
  if (const std::size_t bad = find_invalid_utf8(text); bad != std::string_view::npos) {
    return fail(ErrorCode::kInvalidArgument, "the text is not valid UTF-8 at byte {} (0x{:02x})",
                bad, static_cast<unsigned char>(text[bad]));
  }
  std::vector<Token> tokens(text.size() + 2);
  const auto length = static_cast<std::int32_t>(text.size());
  const auto room = static_cast<std::int32_t>(tokens.size());
  std::int32_t count = llama_tokenize(impl_->vocab, text.data(), length, tokens.data(), room,
                                      options.add_special, options.parse_special);
  if (count < 0) {
    tokens.resize(static_cast<std::size_t>(-count));
    count = llama_tokenize(impl_->vocab, text.data(), length, tokens.data(), -count,
                           options.add_special, options.parse_special);
  }
  tokens.resize(static_cast<std::size_t>(std::max(count, 0)));
  return tokens;
}

std::string Tokenizer::piece(Token token, bool show_special) const {
  std::string text(32, '\0');
  const auto render = [&] {
    return llama_token_to_piece(impl_->vocab, token, text.data(),
                                static_cast<std::int32_t>(text.size()), 0, show_special);
  };
  std::int32_t length = render();
  if (length < 0) {
    text.resize(static_cast<std::size_t>(-length));
    length = render();
  }
  text.resize(static_cast<std::size_t>(std::max(length, 0)));
  return text;
}

std::string Tokenizer::decode(std::span<const Token> tokens, bool show_special) const {
  std::string text;
  for (const Token token : tokens) text += piece(token, show_special);
  return text;
}

bool Tokenizer::is_end(Token token) const noexcept {
  return llama_vocab_is_eog(impl_->vocab, token);
}

std::int32_t Tokenizer::size() const noexcept {
  return llama_vocab_n_tokens(impl_->vocab);
}

bool Tokenizer::has_chat_template() const noexcept {
  return impl_->chat_template->exists();
}

Result<std::string> Tokenizer::apply_chat_template(std::span<const ChatMessage> messages,
                                                   bool open_answer) const {
  return impl_->chat_template->render(messages, open_answer);
}

}  // namespace kvspan
