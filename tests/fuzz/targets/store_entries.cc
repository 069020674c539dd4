// SPDX-License-Identifier: Apache-2.0
// Entries of a prefix store: manifests and index entries as they are parsed, and whole stores whose entries are
// damaged, with keys that fit. Such a store misses, or gives what was put.
#include <map>
#include <numeric>

#include "store/prefix_store.h"
#include "store/saved_pieces.h"
#include "tests/fuzz/framed.h"
#include "tests/fuzz/target.h"
#include "tests/store/fake_cache.h"

namespace kvspan::fuzz {
namespace {

constexpr std::int32_t kTokens = 600;

// What tests change: entries by key.
class OpenBlobs final : public Blobs {
 public:
  std::map<std::string, std::vector<std::byte>> entries;

  std::string describe() const override { return "open"; }
  Result<std::vector<std::optional<std::vector<std::byte>>>> get(std::span<const std::string> keys,
                                                                 std::size_t) override {
    std::vector<std::optional<std::vector<std::byte>>> found;
    for (const std::string& key : keys) {
      const auto at = entries.find(key);
      found.push_back(at == entries.end() ? std::nullopt : std::optional(at->second));
    }
    return found;
  }
  Result<std::vector<bool>> has(std::span<const std::string> keys) override {
    std::vector<bool> found;
    for (const std::string& key : keys) found.push_back(entries.contains(key));
    return found;
  }
  Status put(std::span<const BlobView> blobs) override {
    for (const BlobView& blob : blobs) entries[blob.key].assign(blob.bytes.begin(), blob.bytes.end());
    return {};
  }
  void remove(std::span<const std::string> keys) override {
    for (const std::string& key : keys) entries.erase(key);
  }
  std::uint64_t bytes() const override { return 0; }
};

const StoreIdentity& identity() {
  static const StoreIdentity made{"model", "full", "", ""};
  return made;
}

std::vector<std::int32_t> text() {
  std::vector<std::int32_t> tokens(kTokens);
  std::iota(tokens.begin(), tokens.end(), 1);
  return tokens;
}

// A store with one cache, and the bytes of that.
struct Filled {
  OpenBlobs blobs;
  std::vector<std::byte> cache;
  IndexEntry entry;
  Manifest manifest;
};
const Filled& filled() {
  static const Filled made = [] {
    Filled out;
    testing::FakeCache cache;
    cache.read(text());
    const SavedCache saved = cache.save();
    out.cache = saved.bytes;
    auto own = std::make_unique<OpenBlobs>();
    OpenBlobs& blobs = *own;
    PrefixStore store(std::move(own), identity());
    must(store.put(text(), 1, saved).has_value(), "the store takes no cache");
    out.blobs.entries = blobs.entries;
    for (const auto& [key, bytes] : blobs.entries) {
      if (auto entry = IndexEntry::load(bytes)) out.entry = *std::move(entry);
    }
    auto manifest = Manifest::load(out.blobs.entries.at(out.entry.manifest));
    must(manifest.has_value(), "the store holds no manifest");
    out.manifest = *std::move(manifest);
    return out;
  }();
  return made;
}

bool parse_entry(std::span<const std::uint8_t> input) {
  const auto entry = IndexEntry::load(framed(filled().entry.save(), input));
  if (!entry) return false;
  must(IndexEntry::load(entry->save()).has_value(), "an entry that was read and written is not read");
  return true;
}

bool parse_manifest(std::span<const std::uint8_t> input) {
  const auto manifest = Manifest::load(framed(filled().manifest.save(), input));
  if (!manifest) return false;
  must(Manifest::load(manifest->save()).has_value(), "a manifest that was read and written is not read");
  std::vector<std::vector<std::byte>> pieces;
  std::uint64_t sum = 0;
  for (const Manifest::Piece& piece : manifest->pieces) {
    sum += piece.bytes;
    if (sum > (1u << 20)) return true;
    pieces.emplace_back(piece.bytes);
  }
  const auto joined = join(*manifest, "id", pieces);
  must(!joined || joined->size() == sum, "joined pieces have another length");
  return true;
}

// The manifest is the input's, under the key that it has; the entries of all blocks of tokens lead to it.
bool use_store(std::span<const std::uint8_t> input) {
  auto own = std::make_unique<OpenBlobs>();
  OpenBlobs& blobs = *own;
  blobs.entries = filled().blobs.entries;
  const std::string key = identity().key();
  const auto manifest = framed(filled().manifest.save(), input);
  IndexEntry entry{content_key(key, manifest), kTokens};
  blobs.entries[entry.manifest] = manifest;
  for (const std::string& block : chain_keys(key, text())) blobs.entries[block] = entry.save();
  PrefixStore store(std::move(own), identity());
  const auto found = store.longest(text());
  if (!found) return false;
  must(found->tokens % kBlockTokens == 0 && found->tokens <= kTokens && found->tokens <= found->cache_tokens,
       "the store finds {} of {} tokens", found->tokens, found->cache_tokens);
  store.reject(*found);
  return true;
}

bool run(std::span<const std::uint8_t> input) {
  if (input.empty()) return false;
  const auto payload = input.subspan(1);
  switch (input[0] % 3) {
    case 0: return parse_entry(payload);
    case 1: return parse_manifest(payload);
    default: return use_store(payload);
  }
}

std::vector<Bytes> seeds() {
  const auto manifest = filled().manifest.save();
  return {unframed(filled().entry.save(), {0}), unframed(manifest, {1}), unframed(manifest, {2})};
}

}  // namespace

extern const Target store_entries_target{"store_entries", "index entries and manifests of prefix stores", 1 << 13, run, seeds};

}  // namespace kvspan::fuzz
