// SPDX-License-Identifier: Apache-2.0
#include "llama/engine.h"

#include <llama-cpp.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <vector>

#include "base/expect.h"
#include "base/fail.h"
#include "llama/dequantize.h"
#include "llama/fingerprint.h"
#include "llama/ggml_log.h"
#include "llama/hooked_context.h"
#include "llama/one_device.h"
#include "llama/pass_threads.h"
#include "llama/recurrent_slots.h"
#include "llama/threadpool.h"

namespace kvspan {
namespace {

constexpr std::uint32_t kRecurrentSequences = 8;  // each has a state, whether used or not
constexpr std::size_t kObservedStride = 16;       // of rows that the last layer goes on with

bool cancelled(void* flag) {
  const auto* cancel = *static_cast<const std::atomic<bool>**>(flag);
  return cancel != nullptr && cancel->load(std::memory_order_relaxed);
}

std::string metadata(const llama_model* model, const char* key) {
  char text[256];
  return llama_model_meta_val_str(model, key, text, sizeof text) >= 0 ? text : "";
}

void set_rope(const RopeOptions& rope, const ModelInfo& info, llama_context_params& params) {
  using Scaling = RopeOptions::Scaling;
  switch (rope.scaling) {
    case Scaling::kModel:
      break;
    case Scaling::kNone:
      params.rope_scaling_type = LLAMA_ROPE_SCALING_TYPE_NONE;
      break;
    case Scaling::kLinear:
      params.rope_scaling_type = LLAMA_ROPE_SCALING_TYPE_LINEAR;
      break;
    case Scaling::kYarn:
      params.rope_scaling_type = LLAMA_ROPE_SCALING_TYPE_YARN;
      break;
  }
  params.rope_freq_base = rope.base;
  params.rope_freq_scale = rope.scale;
  const bool stretches = rope.scaling == Scaling::kLinear || rope.scaling == Scaling::kYarn;
  if (stretches && rope.scale == 0.0f && info.context > info.trained_context) {
    params.rope_freq_scale =
        static_cast<float>(info.trained_context) / static_cast<float>(info.context);
  }
  params.yarn_orig_ctx = static_cast<std::uint32_t>(rope.yarn_context);
  params.yarn_ext_factor = rope.yarn_extrapolation;
  params.yarn_attn_factor = rope.yarn_magnitude;
  params.yarn_beta_slow = rope.yarn_beta_slow;
  params.yarn_beta_fast = rope.yarn_beta_fast;
}

}  // namespace

bool engine_has_cuda() {
  silence_ggml();  // looking for devices, it says what it finds
  return ggml_backend_reg_by_name("CUDA") != nullptr;
}

bool engine_has_gpu() {
  silence_ggml();
  return llama_supports_gpu_offload();
}

struct Engine::Impl {
  // A llama_batch that frees itself.
  class Batch {
   public:
    explicit Batch(std::int32_t capacity) : batch_(llama_batch_init(capacity, 0, 1)) {}
    ~Batch() { llama_batch_free(batch_); }
    Batch(const Batch&) = delete;
    Batch& operator=(const Batch&) = delete;
    llama_batch* operator->() { return &batch_; }
    const llama_batch& get() const { return batch_; }

   private:
    llama_batch batch_;
  };

  EngineOptions options;
  std::unique_ptr<GgufFile> file;
  ModelInfo info;
  llama_model_ptr model;
  Threadpool threads;
  std::optional<PassThreads> pass;
  const std::atomic<bool>* cancel = nullptr;
  std::unique_ptr<HookedContext> context;
  std::unique_ptr<Batch> batch;
  std::vector<BatchRow> rows;           // of the batch
  std::vector<std::int32_t> logits_of;  // the batch's rows whose logits are wanted
  std::int32_t logit_rows = 0;          // of the last decode; 0 when it failed
  bool observed = false;
  std::string device_note;
  RecurrentSlots states{0};

  Status load_model(const std::string& path);
  Status open_context();
  void describe(const std::string& path);
  Status check(std::span<const BatchPart> batch) const;
  Status fill(std::span<const BatchPart> batch);
  Status take_back(std::span<const BatchPart> batch, Error why);
};

Status Engine::Impl::load_model(const std::string& path) {
  GgmlLogCapture log;
  llama_model_params params = llama_model_default_params();
  params.n_gpu_layers = options.gpu_layers;
  use_one_device(params);
  model.reset(llama_model_load_from_file(path.c_str(), params));
  if (model) return {};
  return fail(ErrorCode::kUnsupported, "libllama cannot load '{}': {}", path, log.reason());
}

Status Engine::Impl::open_context() {
  llama_context_params params = llama_context_default_params();
  params.n_ctx = static_cast<std::uint32_t>(options.context);
  params.n_batch = params.n_ubatch = static_cast<std::uint32_t>(options.block);
  set_rope(options.rope, info, params);
  const bool recurrent = llama_model_is_hybrid(model.get());
  params.n_seq_max = static_cast<std::uint32_t>(std::clamp(options.sequences, 2, 256));
  if (recurrent) params.n_seq_max = std::min(params.n_seq_max, kRecurrentSequences);
  params.n_threads = params.n_threads_batch = options.threads;
  params.abort_callback = cancelled;
  params.abort_callback_data = &cancel;
  params.no_perf = true;
  auto opened = HookedContext::create(model.get(), params, {info.path});
  if (!opened) {
    return fail(opened.error().code, "'{}' ({}): {}", info.path, info.architecture,
                opened.error().message);
  }
  context = *std::move(opened);
  states = RecurrentSlots(params.n_seq_max);
  llama_attach_threadpool(context->get(), threads.get(), nullptr);
  std::vector<llama_adapter_lora*> adapters;  // freed with the model
  std::vector<float> scales;
  for (const Adapter& adapter : options.adapters) {
    const GgmlLogCapture log;
    llama_adapter_lora* lora = llama_adapter_lora_init(model.get(), adapter.path.c_str());
    if (lora == nullptr) {
      return fail(ErrorCode::kInvalidArgument, "'{}' is no LoRA adapter for '{}': {}", adapter.path,
                  info.path, log.reason());
    }
    adapters.push_back(lora);
    scales.push_back(adapter.scale);
  }
  if (!adapters.empty()) {
    llama_set_adapters_lora(context->get(), adapters.data(), adapters.size(), scales.data());
  }
  return {};
}

void Engine::Impl::describe(const std::string& path) {
  info.path = path;
  info.architecture = metadata(model.get(), "general.architecture");
  info.name = metadata(model.get(), "general.name");
  if (info.name.empty()) info.name = info.architecture;
  info.hidden = llama_model_n_embd(model.get());
  info.layers = llama_model_n_layer(model.get());
  info.vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(model.get()));
  info.trained_context = llama_model_n_ctx_train(model.get());
  info.context = options.context > 0 ? options.context : info.trained_context;
  // Learned positions end; rotations do not.
  if (const ggml_tensor* positions = file->find_tensor("position_embd.weight")) {
    info.context = std::min(info.context, static_cast<std::int32_t>(positions->ne[1]));
  }
  info.file_bytes = file->file_bytes();
  info.weight_bytes = file->tensor_bytes();
}

Status Engine::Impl::check(std::span<const BatchPart> parts) const {
  std::size_t total = 0;
  for (const BatchPart& part : parts) {
    KVSPAN_EXPECT(part.cache != nullptr, "a part has a cache");
    KVSPAN_EXPECT(part.cache->shape() == context->shape(), "the cache was made for this model");
    if (part.tokens.empty())
      return fail(ErrorCode::kInvalidArgument, "a sequence has no new tokens");
    total += part.tokens.size();
    for (std::size_t i = 0; i < part.tokens.size(); ++i) {
      const Token token = part.tokens[i];
      if (token < 0 || token >= info.vocabulary) {
        return fail(ErrorCode::kInvalidArgument, "token {} at index {} is outside 0..{}", token, i,
                    info.vocabulary - 1);
      }
    }
    const std::size_t end = static_cast<std::size_t>(part.cache->tokens()) + part.tokens.size();
    if (end > static_cast<std::size_t>(info.context)) {
      return fail(ErrorCode::kOutOfBudget, "{} tokens exceed the model's context of {}", end,
                  info.context);
    }
  }
  KVSPAN_EXPECT(total >= 1 && total <= static_cast<std::size_t>(options.block),
                "a batch holds 1 to options().block tokens");
  const std::uint32_t most = llama_n_seq_max(context->get());
  if (parts.size() > most) {
    return fail(ErrorCode::kInvalidArgument, "{} sequences in a batch; at most {} are possible",
                parts.size(), most);
  }
  return {};
}

// The batch as libllama takes it, and which cache its rows belong to.
Status Engine::Impl::fill(std::span<const BatchPart> parts) {
  Batch& to = *batch;
  rows.clear();
  logits_of.clear();
  std::vector<llama_seq_id> sequences(parts.size());
  std::iota(sequences.begin(), sequences.end(), 0);
  if (context->recurrent()) {
    std::vector<KvCache*> caches;
    for (const BatchPart& part : parts) caches.push_back(part.cache);
    KVSPAN_TRY(sequences, states.of(caches, llama_get_memory(context->get())));
  }
  std::int32_t row = 0;
  for (std::size_t p = 0; p < parts.size(); ++p) {
    const BatchPart& part = parts[p];
    const llama_seq_id sequence = sequences[p];
    for (std::size_t i = 0; i < part.tokens.size(); ++i, ++row) {
      const bool last = i + 1 == part.tokens.size();
      const bool wanted = part.logits == BatchPart::Logits::kAll || last;
      to->token[row] = part.tokens[i];
      to->pos[row] = part.cache->tokens() + static_cast<std::int32_t>(i);
      to->n_seq_id[row] = 1;
      to->seq_id[row][0] = sequence;
      to->logits[row] = wanted || (observed && i % kObservedStride == 0);
      rows.push_back({sequence, to->pos[row], part.cache});
      if (wanted) logits_of.push_back(row);
    }
  }
  to->n_tokens = row;
  return {};
}

// Layers before the failing one hold the new rows, later ones do not: takes them all back, or, with
// a method that cannot, all there is: layers that hold different tokens are of no use.
Status Engine::Impl::take_back(std::span<const BatchPart> parts, Error why) {
  std::size_t row = 0;
  for (const BatchPart& part : parts) {
    if (!part.cache->truncate(rows[row].position)) part.cache->clear();
    if (context->recurrent()) states.drop(rows[row].sequence);
    row += part.tokens.size();
  }
  return why;
}

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::~Engine() = default;

Result<std::unique_ptr<Engine>> Engine::load(const std::string& path,
                                             const EngineOptions& options) {
  KVSPAN_EXPECT(options.threads >= 1 && options.block >= 1, "at least one thread and token");
  silence_ggml();
  const ProcessTimes started = process_times();
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  KVSPAN_TRY(impl->file, GgufFile::open(path));
  KVSPAN_CHECK_OK(impl->load_model(path));
  impl->describe(path);
  impl->threads = make_threadpool(options.threads);
  if (!impl->threads) {
    return fail(ErrorCode::kIo, "cannot start {} threads", options.threads);
  }
  KVSPAN_CHECK_OK(impl->open_context());
  const LayerShape& first = impl->context->shape().layers.front();
  impl->info.query_heads = first.query_heads;
  impl->info.kv_heads = first.kv_heads;
  impl->info.key_dim = first.key_dim;
  impl->batch = std::make_unique<Impl::Batch>(options.block);
  impl->pass.emplace(impl->context->get(), process_times() - started, options.adapt_threads);
  return std::unique_ptr<Engine>(new Engine(std::move(impl)));
}

const ModelInfo& Engine::info() const noexcept {
  return impl_->info;
}
const CacheShape& Engine::cache_shape() const noexcept {
  return impl_->context->shape();
}
const EngineOptions& Engine::options() const noexcept {
  return impl_->options;
}

std::string Engine::fingerprint() const {
  return fingerprint_of(*impl_->file);
}

Result<OutputProjection> Engine::output_projection(int layer) const {
  const auto& layers = impl_->context->model().layers;
  KVSPAN_EXPECT(layer >= 0 && static_cast<std::size_t>(layer) < layers.size(),
                "the model has this layer");
  const LayerTrace& trace = layers[static_cast<std::size_t>(layer)].trace;
  OutputProjection projection;
  if (trace.output_weight == nullptr) return projection;
  // From the file: libllama may hold it in another layout, or on another device.
  const auto read = [&](const ggml_tensor* tensor) -> Result<std::vector<float>> {
    KVSPAN_TRY(const ggml_tensor* found,
               impl_->file->require_tensor(tensor->name, tensor->ne[0], tensor->ne[1]));
    std::vector<float> numbers = floats_of(found);
    if (!numbers.empty()) return numbers;
    return fail(ErrorCode::kUnsupported, "'{}': tensor '{}' of type {} cannot be read as f32",
                impl_->info.path, tensor->name, ggml_type_name(found->type));
  };
  KVSPAN_TRY(projection.weights, read(trace.output_weight));
  if (trace.post_norm_gain != nullptr && !trace.post_norm_input.empty()) {
    KVSPAN_TRY(projection.gain, read(trace.post_norm_gain));
    projection.epsilon = trace.post_norm_epsilon;
    // Such a norm may make a few numbers massive that the next one takes away again. Without it they count alike.
    if (trace.reader_gain != nullptr) {
      KVSPAN_TRY(projection.reader, read(trace.reader_gain));
    }
  }
  return projection;
}

Status Engine::decode(std::span<const BatchPart> batch) {
  Impl& impl = *impl_;
  impl.logit_rows = 0;
  KVSPAN_CHECK_OK(impl.check(batch));
  // Devices do not ask while they compute.
  if (cancelled(&impl.cancel)) return fail(ErrorCode::kCancelled, "stopped");
  KVSPAN_CHECK_OK(impl.fill(batch));
  impl.pass->begin();
  if (Status status = impl.context->decode(impl.batch->get(), impl.rows); !status) {
    return impl.take_back(batch, std::move(status).error());
  }
  impl.pass->end();
  if (impl.context->recurrent()) {
    for (const BatchRow& row : impl.rows) impl.states.advance(row.sequence, *row.cache);
  }
  impl.logit_rows = static_cast<std::int32_t>(impl.logits_of.size());
  return {};
}

std::int32_t Engine::logit_rows() const noexcept {
  return impl_->logit_rows;
}

std::span<const float> Engine::logits(std::int32_t row) const noexcept {
  return {llama_get_logits_ith(native(), native_row(row)),
          static_cast<std::size_t>(impl_->info.vocabulary)};
}

llama_context* Engine::native() const noexcept {
  return impl_->context->get();
}

std::int32_t Engine::native_row(std::int32_t row) const noexcept {
  KVSPAN_EXPECT(row >= 0 && row < logit_rows(), "a row of the last decode");
  return impl_->logits_of[static_cast<std::size_t>(row)];
}

Status Engine::prefill(KvCache& cache, std::span<const Token> tokens,
                       const std::function<void(std::size_t)>& progress) {
  if (tokens.empty()) return fail(ErrorCode::kInvalidArgument, "there are no tokens to read");
  const auto block = static_cast<std::size_t>(impl_->options.block);
  for (std::size_t done = 0; done < tokens.size();) {
    const std::size_t count = std::min(block, tokens.size() - done);
    const BatchPart part{&cache, tokens.subspan(done, count), BatchPart::Logits::kLast};
    KVSPAN_CHECK_OK(decode({&part, 1}));
    done += count;
    if (progress) progress(done);
  }
  return {};
}

void Engine::set_cancel_flag(const std::atomic<bool>* flag) noexcept {
  impl_->cancel = flag;
}

void Engine::set_observer(ActivationObserver* observer) {
  impl_->observed = observer != nullptr;
  impl_->context->set_observer(observer);
}

CacheFactory Engine::place(const CacheFactory& caches) const {
  HookedContext::Placed placed = impl_->context->place(caches, impl_->options.sequences);
  impl_->device_note = std::move(placed.note);
  return std::move(placed.caches);
}

const std::string& Engine::device_note() const noexcept {
  return impl_->device_note;
}

Result<std::unique_ptr<KvCache>> Engine::fork(const KvCache& cache) {
  KVSPAN_TRY(auto copy, cache.fork());
  if (impl_->context->recurrent()) {
    KVSPAN_CHECK_OK(impl_->states.fork(cache, *copy, llama_get_memory(impl_->context->get())));
  }
  return copy;
}

double Engine::attention_seconds() const noexcept {
  return impl_->context->attention_seconds();
}

}  // namespace kvspan
