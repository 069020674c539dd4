// SPDX-License-Identifier: Apache-2.0
#include "kvspan/llama.h"

#include <llama.h>

#include <algorithm>
#include <map>
#include <optional>

#include "api/certify_head.h"
#include "api/layer_bytes.h"
#include "base/fail.h"
#include "llama/hooked_context.h"

namespace kvspan {

struct LlamaCaches::Impl {
  std::unique_ptr<HookedContext> context;
  std::optional<CacheFactory> factory;
  std::map<std::int32_t, std::unique_ptr<KvCache>> caches;  // by sequence
  std::vector<llama_pos> positions;                         // of batches that have none
  bool on_device = false;
  std::string device_note;

  llama_memory_t memory() const { return llama_get_memory(context->get()); }
  const KvCache* find(std::int32_t sequence) const {
    const auto found = caches.find(sequence);
    return found == caches.end() ? nullptr : found->second.get();
  }
  Status check_sequence(std::int32_t sequence) const;
  Result<std::vector<BatchRow>> rows_of(const llama_batch& batch);
  void put(std::int32_t sequence, std::unique_ptr<KvCache> cache);
};

Status LlamaCaches::Impl::check_sequence(std::int32_t sequence) const {
  const std::uint32_t most = llama_n_seq_max(context->get());
  if (sequence >= 0 && static_cast<std::uint32_t>(sequence) < most) return {};
  return fail(ErrorCode::kInvalidArgument, "sequence {} is outside 0..{} (n_seq_max)", sequence,
              most - 1);
}

// The rows of a batch with the caches that they belong to, new ones for new sequences.
Result<std::vector<BatchRow>> LlamaCaches::Impl::rows_of(const llama_batch& batch) {
  if (batch.embd != nullptr) {
    return fail(ErrorCode::kUnsupported, "a batch of embeddings; kvspan's caches take tokens");
  }
  std::vector<BatchRow> rows;
  std::map<std::int32_t, std::int32_t> next;
  for (std::int32_t i = 0; i < batch.n_tokens; ++i) {
    if (batch.n_seq_id != nullptr && batch.n_seq_id[i] != 1) {
      return fail(ErrorCode::kUnsupported,
                  "token {} of the batch belongs to {} sequences; one is "
                  "possible",
                  i, batch.n_seq_id[i]);
    }
    const std::int32_t sequence = batch.seq_id != nullptr ? batch.seq_id[i][0] : 0;
    KVSPAN_CHECK_OK(check_sequence(sequence));
    auto& cache = caches[sequence];
    if (!cache) cache = factory->make();
    const auto [expected, is_new] = next.try_emplace(sequence, cache->tokens());
    const std::int32_t position = batch.pos != nullptr ? batch.pos[i] : expected->second;
    if (position != expected->second) {
      return fail(ErrorCode::kInvalidArgument,
                  "token {} of the batch is at position {} of sequence {}, which goes on at {}", i,
                  position, sequence, expected->second);
    }
    if (static_cast<std::uint32_t>(position) >= context->context_length()) {
      return fail(ErrorCode::kOutOfBudget, "{} tokens exceed the context of {}", position + 1,
                  context->context_length());
    }
    ++expected->second;
    rows.push_back({sequence, position, cache.get()});
  }
  return rows;
}

void LlamaCaches::Impl::put(std::int32_t sequence, std::unique_ptr<KvCache> cache) {
  if (context->recurrent()) llama_memory_seq_rm(memory(), sequence, -1, -1);
  caches[sequence] = std::move(cache);
}

LlamaCaches::LlamaCaches(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
LlamaCaches::~LlamaCaches() = default;

Result<std::unique_ptr<LlamaCaches>> LlamaCaches::create(llama_model* model,
                                                         const llama_context_params& params,
                                                         const LlamaOptions& options) {
  auto impl = std::make_unique<Impl>();
  KVSPAN_TRY(impl->context, HookedContext::create(model, params, {options.model_path}));
  KVSPAN_TRY(const CacheFactory caches,
             CacheFactory::create(impl->context->shape(), options.recipe, options.calibration));
  HookedContext::Placed placed =
      impl->context->place(caches, static_cast<std::int32_t>(llama_n_seq_max(impl->context->get())));
  impl->factory = std::move(placed.caches);
  impl->on_device = placed.on_device;
  impl->device_note = std::move(placed.note);
  return std::unique_ptr<LlamaCaches>(new LlamaCaches(std::move(impl)));
}

llama_context* LlamaCaches::context() const noexcept {
  return impl_->context->get();
}
const CacheShape& LlamaCaches::shape() const noexcept {
  return impl_->context->shape();
}
const std::string& LlamaCaches::recipe() const noexcept {
  return impl_->factory->recipe();
}

bool LlamaCaches::on_device() const noexcept {
  return impl_->on_device;
}
const std::string& LlamaCaches::device_note() const noexcept {
  return impl_->device_note;
}

const CacheFactory& LlamaCaches::factory() const noexcept {
  return *impl_->factory;
}

Status LlamaCaches::decode(const llama_batch& batch) {
  if (batch.n_tokens < 1) return fail(ErrorCode::kInvalidArgument, "the batch has no tokens");
  KVSPAN_TRY(const auto rows, impl_->rows_of(batch));
  llama_batch placed = batch;
  if (batch.pos == nullptr) {
    impl_->positions.clear();
    for (const BatchRow& row : rows) impl_->positions.push_back(row.position);
    placed.pos = impl_->positions.data();
  }
  Status status = impl_->context->decode(placed, rows);
  if (status) return status;
  // The first row of a sequence has the position that it goes back to. Recurrent states do not.
  std::map<std::int32_t, std::int32_t> before;
  for (const BatchRow& row : rows) before.try_emplace(row.sequence, row.position);
  for (const auto& [sequence, position] : before) {
    if (impl_->context->recurrent() || !impl_->caches[sequence]->truncate(position)) {
      clear(sequence);
    }
  }
  return status;
}

std::int32_t LlamaCaches::tokens(std::int32_t sequence) const noexcept {
  const KvCache* cache = impl_->find(sequence);
  return cache != nullptr ? cache->tokens() : 0;
}

std::int32_t LlamaCaches::least_tokens(std::int32_t sequence) const noexcept {
  const KvCache* cache = impl_->find(sequence);
  if (cache == nullptr) return 0;
  return impl_->context->recurrent() ? cache->tokens() : cache->least_tokens();
}

Status LlamaCaches::truncate(std::int32_t sequence, std::int32_t n) {
  if (n >= tokens(sequence)) return {};
  if (n <= 0) {
    clear(sequence);
    return {};
  }
  if (impl_->context->recurrent()) {
    return fail(ErrorCode::kUnsupported,
                "sequence {} cannot go back to {} tokens: the model has recurrent layers, whose "
                "state is that of its last token",
                sequence, n);
  }
  return impl_->caches[sequence]->truncate(n);
}

void LlamaCaches::clear(std::int32_t sequence) {
  if (impl_->context->recurrent()) llama_memory_seq_rm(impl_->memory(), sequence, -1, -1);
  impl_->caches.erase(sequence);
}

void LlamaCaches::clear() {
  llama_memory_clear(impl_->memory(), false);
  impl_->caches.clear();
}

Status LlamaCaches::fork(std::int32_t from, std::int32_t to) {
  KVSPAN_CHECK_OK(impl_->check_sequence(to));
  if (from == to) return {};
  const KvCache* cache = impl_->find(from);
  if (cache == nullptr) {
    clear(to);
    return {};
  }
  KVSPAN_TRY(auto copy, cache->fork());
  impl_->put(to, std::move(copy));
  if (impl_->context->recurrent()) llama_memory_seq_cp(impl_->memory(), from, to, -1, -1);
  return {};
}

CacheBytes LlamaCaches::bytes() const {
  CacheBytes sum;
  for (const auto& [sequence, cache] : impl_->caches) {
    const CacheBytes one = cache->bytes();
    sum.full_rank += one.full_rank;
    sum.coefficients += one.coefficients;
    sum.scales += one.scales;
    sum.bases += one.bases;
    sum.sketches += one.sketches;
    sum.positions += one.positions;
    sum.total += one.total;
  }
  sum.shared = impl_->factory->shared_bytes();
  return sum;
}

CacheBytes LlamaCaches::bytes(std::int32_t sequence) const {
  const KvCache* cache = impl_->find(sequence);
  return cache != nullptr ? cache->bytes() : CacheBytes{};
}

std::vector<std::size_t> LlamaCaches::layer_bytes() const {
  std::vector<std::size_t> sums(shape().layers.size());
  for (const auto& [sequence, cache] : impl_->caches) {
    const std::vector<std::size_t> of = kvspan::layer_bytes(*cache);
    for (std::size_t i = 0; i < of.size(); ++i) sums[i] += of[i];
  }
  return sums;
}

bool LlamaCaches::sample_certificates(double share) {
  const bool has = has_certificates(recipe());
  impl_->context->certificates().set_share(has ? share : 0.0);
  return has;
}

const CertificateFigures& LlamaCaches::certificates() const noexcept {
  return impl_->context->certificates().figures();
}

Result<std::vector<std::byte>> LlamaCaches::save(std::int32_t sequence) const {
  KVSPAN_TRY(SavedCache saved, save_with_runs(sequence));
  return std::move(saved.bytes);
}

Result<SavedCache> LlamaCaches::save_with_runs(std::int32_t sequence) const {
  if (impl_->context->recurrent()) {
    return fail(ErrorCode::kUnsupported, "the state of recurrent layers cannot be saved");
  }
  const KvCache* cache = impl_->find(sequence);
  return kvspan::save_with_runs(cache != nullptr ? *cache : *impl_->factory->make());
}

Status LlamaCaches::load(std::int32_t sequence, std::span<const std::byte> bytes) {
  KVSPAN_CHECK_OK(impl_->check_sequence(sequence));
  if (impl_->context->recurrent()) {
    return fail(ErrorCode::kUnsupported, "the state of recurrent layers cannot be loaded");
  }
  KVSPAN_TRY(auto cache, impl_->factory->load(bytes));
  if (cache->tokens() == 0) {
    clear(sequence);  // as a new sequence, it has no cache yet
  } else {
    impl_->put(sequence, std::move(cache));
  }
  return {};
}

Status LlamaCaches::take(std::int32_t sequence, std::unique_ptr<KvCache> cache) {
  KVSPAN_CHECK_OK(impl_->check_sequence(sequence));
  if (impl_->context->recurrent()) {
    return fail(ErrorCode::kUnsupported, "the state of recurrent layers cannot be loaded");
  }
  if (cache->recipe() != recipe() || !(cache->shape() == shape())) {
    return fail(ErrorCode::kInvalidArgument, "a cache of {} for a context with {}", cache->recipe(), recipe());
  }
  KVSPAN_TRY(auto own, impl_->factory->brought_home(std::move(cache)));
  impl_->put(sequence, std::move(own));
  return {};
}

}  // namespace kvspan
