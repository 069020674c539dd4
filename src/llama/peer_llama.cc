// SPDX-License-Identifier: Apache-2.0
#include "llama/peer_llama.h"

#include <llama-cpp.h>
#include <llama-ext.h>

#include <array>
#include <utility>
#include <vector>

#include "base/expect.h"
#include "base/fail.h"
#include "llama/ggml_log.h"
#include "llama/one_device.h"
#include "llama/threadpool.h"

namespace kvspan {
namespace {

constexpr std::array<std::pair<std::string_view, ggml_type>, 4> kKvTypes{
    {{"f32", GGML_TYPE_F32},
     {"f16", GGML_TYPE_F16},
     {"q8_0", GGML_TYPE_Q8_0},
     {"q4_0", GGML_TYPE_Q4_0}}};

Result<ggml_type> parse_kv_type(const std::string& name) {
  for (const auto& [text, type] : kKvTypes) {
    if (text == name) return type;
  }
  return fail(ErrorCode::kInvalidArgument, "llama.cpp KV type '{}'; allowed: f32, f16, q8_0, q4_0",
              name);
}

}  // namespace

struct PeerLlama::Impl {
  llama_model_ptr model;
  Threadpool threads;
  llama_context_ptr context;
  ggml_type kv_type = GGML_TYPE_F16;
  std::int32_t sequences = 1;
  std::int32_t tokens = 0;  // of each
  std::int32_t vocabulary = 0;
  std::vector<std::int32_t> logit_rows;  // batch index of each row of logits

  Status pass(std::span<const Token> text, std::int32_t first, std::int32_t count, bool all);
};

PeerLlama::PeerLlama(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
PeerLlama::~PeerLlama() = default;

Result<std::unique_ptr<PeerLlama>> PeerLlama::load(const std::string& path,
                                                   const PeerOptions& options) {
  GgmlLogCapture log;
  auto impl = std::make_unique<Impl>();
  KVSPAN_TRY(impl->kv_type, parse_kv_type(options.kv_type));
  llama_backend_init();
  llama_model_params model_params = llama_model_default_params();
  model_params.n_gpu_layers = options.gpu_layers;
  use_one_device(model_params);
  impl->model.reset(llama_model_load_from_file(path.c_str(), model_params));
  if (!impl->model) {
    return fail(ErrorCode::kUnsupported, "llama.cpp cannot load '{}': {}", path, log.reason());
  }
  impl->vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(impl->model.get()));
  llama_context_params params = llama_context_default_params();
  impl->sequences = options.sequences;
  params.n_ctx = static_cast<std::uint32_t>(options.context * options.sequences);
  params.n_seq_max = static_cast<std::uint32_t>(options.sequences);
  params.n_batch = params.n_ubatch = static_cast<std::uint32_t>(options.block);
  params.n_threads = params.n_threads_batch = options.threads;
  params.type_k = params.type_v = impl->kv_type;
  params.swa_full = false;  // layers with a window hold no more than that, as in llama.cpp's own programs
  params.flash_attn_type =
      options.flash_attention ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
  impl->context.reset(llama_init_from_model(impl->model.get(), params));
  if (!impl->context) {
    return fail(ErrorCode::kUnsupported, "llama.cpp cannot start '{}' with {} KV: {}", path,
                options.kv_type, log.reason());
  }
  impl->threads = make_threadpool(options.threads);
  if (!impl->threads) return fail(ErrorCode::kIo, "cannot start {} threads", options.threads);
  llama_attach_threadpool(impl->context.get(), impl->threads.get(), nullptr);
  return std::unique_ptr<PeerLlama>(new PeerLlama(std::move(impl)));
}

std::int32_t PeerLlama::tokens() const noexcept {
  return impl_->tokens;
}

// The same tokens enter `count` sequences, from number `first` on.
Status PeerLlama::Impl::pass(std::span<const Token> text, std::int32_t first, std::int32_t count,
                             bool all) {
  const auto length = static_cast<std::int32_t>(text.size());
  llama_batch batch = llama_batch_init(length * count, 0, 1);
  batch.n_tokens = length * count;
  logit_rows.clear();
  for (std::int32_t row = 0; row < length * count; ++row) {
    const std::int32_t i = row % length;
    const bool wanted = all || i + 1 == length;
    batch.token[row] = text[static_cast<std::size_t>(i)];
    batch.pos[row] = tokens + i;
    batch.n_seq_id[row] = 1;
    batch.seq_id[row][0] = first + row / length;
    batch.logits[row] = wanted;
    if (wanted) logit_rows.push_back(row);
  }
  const int status = llama_decode(context.get(), batch);
  llama_batch_free(batch);
  if (status != 0) {
    return fail(ErrorCode::kOutOfBudget, "llama.cpp could not decode {} tokens at {} (status {})",
                length * count, tokens, status);
  }
  llama_synchronize(context.get());
  return {};
}

Status PeerLlama::decode(std::span<const Token> tokens, BatchPart::Logits logits) {
  const std::int32_t together = tokens.size() == 1 ? impl_->sequences : 1;
  for (std::int32_t first = 0; first < impl_->sequences; first += together) {
    KVSPAN_CHECK_OK(impl_->pass(tokens, first, together, logits == BatchPart::Logits::kAll));
  }
  impl_->tokens += static_cast<std::int32_t>(tokens.size());
  return {};
}

std::span<const float> PeerLlama::logits(std::int32_t row) const noexcept {
  KVSPAN_EXPECT(row >= 0 && row < static_cast<std::int32_t>(impl_->logit_rows.size()),
                "a row of the last decode");
  return {
      llama_get_logits_ith(impl_->context.get(), impl_->logit_rows[static_cast<std::size_t>(row)]),
      static_cast<std::size_t>(impl_->vocabulary)};
}

Status PeerLlama::truncate(std::int32_t n) {
  if (n >= impl_->tokens) return {};
  for (std::int32_t sequence = 0; sequence < impl_->sequences; ++sequence) {
    if (!llama_memory_seq_rm(llama_get_memory(impl_->context.get()), sequence, n, -1)) {
      return fail(ErrorCode::kUnsupported, "llama.cpp cannot forget tokens from {} on", n);
    }
  }
  impl_->tokens = n;
  return {};
}

bool PeerLlama::compressed() const noexcept {
  return ggml_is_quantized(impl_->kv_type);
}

std::uint64_t PeerLlama::kv_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& [memory, part] : llama_get_memory_breakdown(impl_->context.get())) bytes += part.context;
  return bytes;
}

}  // namespace kvspan
