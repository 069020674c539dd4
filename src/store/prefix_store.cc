// SPDX-License-Identifier: Apache-2.0
#include "store/prefix_store.h"

#include <algorithm>
#include <utility>

#include "base/fail.h"
#include "io/stopwatch.h"

namespace kvspan {
namespace {

// How many entries for one prompt may be found damaged before it counts as a miss.
constexpr int kMostTries = 3;
// A cache is put where so many blocks are new, or a quarter of them.
constexpr std::int32_t kNewBlocks = 4;
constexpr std::size_t kMostIndexBytes = 4096;
constexpr std::size_t kMostManifestBytes = std::size_t{64} << 20;  // a million tokens have less

}  // namespace

PrefixStore::PrefixStore(std::unique_ptr<Blobs> blobs, const StoreIdentity& identity)
    : blobs_(std::move(blobs)), identity_(identity.key()) {}

void PrefixStore::count_failure(const Error& error) {
  const std::lock_guard lock(mutex_);
  ++numbers_.failures;
  numbers_.last_failure = error.message;
  answers_ = false;
}

PrefixStore::Outcome PrefixStore::load(const std::string& chain_key, std::int32_t tokens,
                                       const IndexEntry& entry, StoredPrefix& prefix) {
  const auto damaged = [&](std::span<const std::string> keys) {
    blobs_->remove(keys);
    return Outcome::kDamaged;
  };
  auto found = blobs_->get(std::span(&entry.manifest, 1), kMostManifestBytes);
  if (!found) {
    count_failure(found.error());
    return Outcome::kNoAnswer;
  }
  if (!found->front()) return Outcome::kGone;
  const std::vector<std::string> leads = {chain_key, entry.manifest};
  if (content_key(identity_, *found->front()) != entry.manifest) return damaged(leads);
  Result<Manifest> manifest = Manifest::load(*found->front());
  const auto block = static_cast<std::size_t>(tokens / kBlockTokens - 1);
  // An entry may stand under a key that is not its own.
  if (!manifest || block >= manifest->chain.size() || manifest->chain[block] != chain_key) {
    return damaged(leads);
  }
  std::vector<std::string> keys;
  std::uint64_t most = 0;
  for (const Manifest::Piece& piece : manifest->pieces) {
    keys.push_back(piece.key);
    most = std::max(most, piece.bytes);
  }
  auto pieces = blobs_->get(keys, most);
  if (!pieces) {
    count_failure(pieces.error());
    return Outcome::kNoAnswer;
  }
  std::vector<std::vector<std::byte>> whole;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    std::optional<std::vector<std::byte>>& piece = (*pieces)[i];
    if (!piece) return Outcome::kGone;
    whole.push_back(std::move(*piece));
  }
  Result<std::vector<std::byte>> bytes = join(*manifest, identity_, whole);
  if (!bytes) {
    // Which of them is wrong is not worth knowing: they are written again with the next put.
    keys.insert(keys.end(), leads.begin(), leads.end());
    return damaged(keys);
  }
  prefix = {tokens, manifest->tokens, std::move(manifest->chain), std::move(*bytes), entry.manifest};
  return Outcome::kFound;
}

std::optional<StoredPrefix> PrefixStore::find(std::span<const std::int32_t> tokens,
                                              std::int32_t beyond) {
  const std::vector<std::string> chain = chain_keys(identity_, tokens);
  const auto first = static_cast<std::size_t>(std::max(0, beyond) / kBlockTokens);
  if (first >= chain.size()) return std::nullopt;
  const auto keys = std::span(chain).subspan(first);
  auto entries = blobs_->get(keys, kMostIndexBytes);
  if (!entries) {
    count_failure(entries.error());
    return std::nullopt;
  }
  int tries = 0;
  for (std::size_t i = keys.size(); i-- > 0 && tries < kMostTries;) {
    if (!(*entries)[i]) continue;
    ++tries;
    const auto n = static_cast<std::int32_t>(first + i + 1) * kBlockTokens;
    const Result<IndexEntry> entry = IndexEntry::load(*(*entries)[i]);
    StoredPrefix prefix;
    const Outcome outcome = entry ? load(keys[i], n, *entry, prefix) : Outcome::kDamaged;
    if (outcome == Outcome::kFound) return prefix;
    if (outcome == Outcome::kNoAnswer) return std::nullopt;
    // Nothing else that leads there is of use either.
    const std::vector<std::byte> useless = *(*entries)[i];
    std::vector<std::string> gone;
    for (std::size_t j = 0; j <= i; ++j) {
      if ((*entries)[j] != useless) continue;
      gone.push_back(keys[j]);
      (*entries)[j].reset();
    }
    blobs_->remove(gone);
    const std::lock_guard lock(mutex_);
    if (outcome == Outcome::kDamaged) ++numbers_.damaged;
  }
  return std::nullopt;
}

std::optional<StoredPrefix> PrefixStore::longest(std::span<const std::int32_t> tokens,
                                                 std::int32_t beyond) {
  const Stopwatch watch;
  answers_ = true;
  std::optional<StoredPrefix> found = find(tokens, beyond);
  const std::lock_guard lock(mutex_);
  if (found) {
    ++numbers_.hits;
    numbers_.hit_tokens += static_cast<std::uint64_t>(found->tokens);
    numbers_.loaded_bytes += found->bytes.size();
    numbers_.load_ms += watch.ms();
  } else {
    ++numbers_.misses;
  }
  return found;
}

void PrefixStore::reject(const StoredPrefix& prefix) {
  std::vector<std::string> keys = {prefix.manifest};
  keys.insert(keys.end(), prefix.chain.begin(), prefix.chain.end());
  blobs_->remove(keys);
  const std::lock_guard lock(mutex_);
  --numbers_.hits;
  ++numbers_.misses;
  ++numbers_.damaged;
  numbers_.hit_tokens -= static_cast<std::uint64_t>(prefix.tokens);
}

bool PrefixStore::worth_putting(std::int32_t tokens, std::int32_t found) {
  const std::int32_t blocks = tokens / kBlockTokens, fresh = blocks - found / kBlockTokens;
  return fresh > 0 && fresh >= std::min(kNewBlocks, (blocks + 3) / 4);
}

Status PrefixStore::put(std::span<const std::int32_t> tokens, std::int32_t least_tokens,
                        const SavedCache& saved) {
  const Stopwatch watch;
  const std::vector<std::string> chain = chain_keys(identity_, tokens);
  const auto size = static_cast<std::int32_t>(tokens.size());
  const auto first =
      static_cast<std::size_t>((std::max(least_tokens, 1) + kBlockTokens - 1) / kBlockTokens - 1);
  if (first >= chain.size()) return {};  // no block that it could be found by

  std::uint64_t written = 0;
  const auto write = [&]() -> Status {
    CutCache parts = cut(saved, size, identity_);
    parts.manifest.chain = chain;
    std::vector<std::string> keys;
    for (const Manifest::Piece& piece : parts.manifest.pieces) keys.push_back(piece.key);
    KVSPAN_TRY(const std::vector<bool> there, blobs_->has(keys));
    std::vector<BlobView> blobs;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (!there[i]) blobs.push_back({keys[i], parts.pieces[i]});
    }
    const std::vector<std::byte> manifest = parts.manifest.save();
    const std::string manifest_key = content_key(identity_, manifest);
    blobs.push_back({manifest_key, manifest});
    KVSPAN_CHECK_OK(blobs_->put(blobs));
    for (const BlobView& blob : blobs) written += blob.bytes.size();

    // Only now what leads to them. A shorter cache costs less to load, so it keeps its place.
    const auto leads = std::span(chain).subspan(first);
    KVSPAN_TRY(const auto before, blobs_->get(leads, kMostIndexBytes));
    const std::vector<std::byte> entry = IndexEntry{manifest_key, size}.save();
    std::vector<BlobView> entries;
    for (std::size_t i = 0; i < leads.size(); ++i) {
      const Result<IndexEntry> old = before[i] ? IndexEntry::load(*before[i]) : Error{};
      if (!old || old->tokens > size) entries.push_back({leads[i], entry});
    }
    written += entries.size() * entry.size();
    return blobs_->put(entries);
  };
  Status done = write();
  if (!done) count_failure(done.error());
  const std::lock_guard lock(mutex_);
  numbers_.saved_bytes += written;
  numbers_.save_ms += watch.ms();
  if (done) ++numbers_.saved;
  return done;
}

StoreStatistics PrefixStore::statistics() const {
  const std::uint64_t held = blobs_->bytes();
  const std::lock_guard lock(mutex_);
  StoreStatistics numbers = numbers_;
  numbers.held_bytes = held;
  return numbers;
}

void PrefixStore::count_dropped() {
  const std::lock_guard lock(mutex_);
  ++numbers_.dropped;
}

void PrefixStore::count_late() {
  const std::lock_guard lock(mutex_);
  ++numbers_.late;
}

void PrefixStore::count_skipped() {
  const std::lock_guard lock(mutex_);
  ++numbers_.skipped;
}

}  // namespace kvspan
