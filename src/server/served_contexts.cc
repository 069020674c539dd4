// SPDX-License-Identifier: Apache-2.0
#include "server/served_contexts.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <mutex>

namespace kvspan::server {
namespace {

struct Model {
  std::string path;
  ProcessTimes loading;
  bool measured_only = false;  // without weights
};

struct Registry {
  std::mutex mutex;
  std::map<const llama_context*, std::unique_ptr<ServedContext>> contexts;
  std::map<const llama_model*, Model> models;
  ServedContext* served = nullptr;  // the one that requests are about, of those above
  KvFigures last;                   // of it, when it went
};

Registry& registry() {
  static Registry the;
  return the;
}

// Null where the model has a memory that libllama would keep by itself.
llama_context* make_without_memory(llama_model* model, const llama_context_params& params) {
  if (params.n_samplers > 0) return nullptr;  // they are made for one context
  llama_context* context = llama_init_from_model(model, params);
  if (context == nullptr || llama_get_memory(context) == nullptr) return context;
  llama_free(context);
  return nullptr;
}

}  // namespace

ServedContext* find_served(const llama_context* context) noexcept {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  const auto found = all.contexts.find(context);
  return found == all.contexts.end() ? nullptr : found->second.get();
}

ServedContext* find_served(llama_memory_t memory) noexcept {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  for (const auto& [context, served] : all.contexts) {
    if (reinterpret_cast<llama_memory_t>(served.get()) == memory) return served.get();
  }
  return nullptr;
}

llama_context* make_context(llama_model* model, const llama_context_params& params) {
  Registry& all = registry();
  Model known;
  bool companion = false;
  {
    const std::lock_guard lock(all.mutex);
    known = all.models[model];
    companion = all.served != nullptr;
  }
  if (known.measured_only) return llama_init_from_model(model, params);
  if (params.ctx_type != LLAMA_CONTEXT_TYPE_DEFAULT || params.ctx_other != nullptr) {
    fmt::print(stderr, "kvspan: what drafts from inside the model has libllama's own memory, in f16\n");
    return llama_init_from_model(model, params);
  }
  CachePlan plan;
  ServeOptions options;
  options.adapt_threads = serve_options().adapt_threads;
  if (!companion) {
    options = serve_options();
    auto planned = options.plan(known.path);
    if (!planned) {
      fmt::print(stderr, "kvspan: {}\n", planned.error().message);
      return nullptr;
    }
    plan = *std::move(planned);
  }
  auto made = ServedContext::create(model, params, plan, known.path, options, known.loading);
  if (!made) {
    if (llama_context* context = make_without_memory(model, params)) return context;
    fmt::print(stderr, "kvspan: {}\n", made.error().message);
    return nullptr;
  }
  if (!companion) fmt::print(stderr, "kvspan: cache {}\n", (*made)->figures().recipe);
  llama_context* context = (*made)->native();
  const std::lock_guard lock(all.mutex);
  if (!companion) all.served = made->get();
  all.contexts[context] = *std::move(made);
  return context;
}

void free_context(llama_context* context) {
  Registry& all = registry();
  std::unique_ptr<ServedContext> ended;
  {
    const std::lock_guard lock(all.mutex);
    const auto found = all.contexts.find(context);
    if (found != all.contexts.end()) {
      ended = std::move(found->second);
      all.contexts.erase(found);
      if (ended.get() == all.served) {
        all.last = ended->figures();
        all.served = nullptr;
      }
    }
  }
  if (!ended) llama_free(context);
}

llama_model* load_model(const char* path, const llama_model_params& params) {
  const ProcessTimes started = process_times();
  llama_model* model = llama_model_load_from_file(path, params);
  if (model == nullptr) return nullptr;
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  all.models[model] = {path, process_times() - started, params.no_alloc};
  return model;
}

void free_model(llama_model* model) {
  {
    Registry& all = registry();
    const std::lock_guard lock(all.mutex);
    all.models.erase(model);
  }
  llama_model_free(model);
}

bool is_served(const llama_model* model) noexcept {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  for (const auto& [context, served] : all.contexts) {
    if (llama_get_model(context) == model) return true;
  }
  return false;
}

ServedFigures served_figures() {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  if (all.served == nullptr) return {all.last, false};
  return {all.served->figures(), true};
}

std::size_t forecast_bytes(std::int64_t tokens) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  return all.served == nullptr ? 0 : all.served->forecast(tokens);
}

std::string served_piece(llama_token token, bool first) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  if (all.served == nullptr) return {};
  const llama_vocab* vocabulary = llama_model_get_vocab(llama_get_model(all.served->native()));
  if (token < 0 || token >= llama_vocab_n_tokens(vocabulary)) return {};
  if (first && llama_vocab_get_add_bos(vocabulary) && token == llama_vocab_bos(vocabulary)) return {};
  std::string piece(32, '\0');
  std::int32_t size = llama_token_to_piece(vocabulary, token, piece.data(), static_cast<std::int32_t>(piece.size()), 0, true);
  if (size < 0) {
    piece.resize(static_cast<std::size_t>(-size));
    size = llama_token_to_piece(vocabulary, token, piece.data(), -size, 0, true);
  }
  piece.resize(static_cast<std::size_t>(std::max(size, 0)));
  return piece;
}

std::uint32_t served_context_length() {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  return all.served == nullptr ? 0 : all.served->sequence_length();
}

}  // namespace kvspan::server
