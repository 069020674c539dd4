// SPDX-License-Identifier: Apache-2.0
#include "server/stored_prefixes.h"

#include <algorithm>
#include <utility>

namespace kvspan::server {

StoredPrefixes::StoredPrefixes(std::unique_ptr<Blobs> blobs, std::string name_space,
                               std::chrono::milliseconds patience)
    : blobs_(std::move(blobs)), patience_(patience) {
  identity_.name_space = std::move(name_space);
}

void StoredPrefixes::set_model(std::string fingerprint, std::string calibration) {
  identity_.model = std::move(fingerprint);
  identity_.calibration = std::move(calibration);
}

PrefixStore& StoredPrefixes::store(const LlamaCaches& caches) {
  const std::lock_guard lock(mutex_);
  if (!store_) {
    identity_.recipe = caches.recipe();
    store_ = std::make_unique<PrefixStore>(std::move(blobs_), identity_);
    reader_ = std::make_unique<StoreReader>(*store_, patience_);
    writer_ = std::make_unique<StoreWriter>(*store_);
  }
  return *store_;
}

bool StoredPrefixes::take_ahead(LlamaCaches& caches, std::int32_t sequence,
                                std::span<const std::int32_t> tokens) {
  Sequence& state = sequences_[sequence];
  if (!state.ahead) return false;
  const std::vector<std::string> chain = chain_keys(store_->identity(), tokens);
  const std::size_t most = std::min(chain.size(), state.chain.size());
  std::size_t same = 0;
  while (same < most && chain[same] == state.chain[same]) ++same;
  const auto n = static_cast<std::int32_t>(same) * kBlockTokens;
  // Where it ends, or the prompt goes another way, it has served.
  const bool goes_on = same == chain.size() && same < state.chain.size();
  std::unique_ptr<KvCache> cache = std::move(state.ahead);
  if (n <= caches.tokens(sequence) || n < cache->least_tokens()) return false;
  Result<std::unique_ptr<KvCache>> cut = cache->fork();
  if (!cut || !(*cut)->truncate(n) || !caches.take(sequence, std::move(*cut))) return false;
  state.known = std::max(state.known, n);
  if (goes_on) state.ahead = std::move(cache);
  return true;
}

void StoredPrefixes::load(LlamaCaches& caches, std::int32_t sequence,
                          std::span<const std::int32_t> tokens) {
  const std::int32_t held = caches.tokens(sequence);
  if (static_cast<std::int32_t>(tokens.size()) / kBlockTokens <= held / kBlockTokens) return;
  (void)store(caches);
  Sequence& state = sequences_[sequence];
  state.known = std::min(state.known, held);
  if (take_ahead(caches, sequence, tokens)) return;
  // In the host's memory: it takes no sequence's place, and can be cut anywhere.
  auto found = reader_->look_up(tokens, held, caches.factory().on_host());
  if (!found) return;
  state.ahead = std::move(found->cache);
  state.chain = std::move(found->chain);
  (void)take_ahead(caches, sequence, tokens);
}

void StoredPrefixes::save(const LlamaCaches& caches, std::int32_t sequence,
                          std::span<const std::int32_t> tokens, bool prompt_ends) {
  Sequence& state = sequences_[sequence];
  if (prompt_ends) state.ahead.reset();
  const auto size = static_cast<std::int32_t>(tokens.size());
  const std::int32_t least = caches.least_tokens(sequence);
  const bool goes_back = least <= size / kBlockTokens * kBlockTokens;
  // One that can go back serves all its beginnings, so the last will do; one that cannot serves where
  // it is.
  if (!goes_back || (!prompt_ends && least <= 1)) return;
  if (!PrefixStore::worth_putting(size, state.known)) return;
  (void)store(caches);
  Result<SavedCache> saved = caches.save_with_runs(sequence);
  if (!saved) return;
  state.known = size / kBlockTokens * kBlockTokens;
  writer_->put({tokens.begin(), tokens.end()}, least, std::move(*saved));
}

StoreStatistics StoredPrefixes::statistics() const {
  const std::lock_guard lock(mutex_);
  return store_ ? store_->statistics() : StoreStatistics{};
}

}  // namespace kvspan::server
