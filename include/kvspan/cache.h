// SPDX-License-Identifier: Apache-2.0
// KV cache of one sequence, all layers.
//
// A step of a layer is three calls, made by every member of a team:
//     append  adds the new rows, raw, so that every row can be attended to at once
//     attend  blockwise softmax of the queries over all stored tokens
//     settle  the method encodes rows that left the recent window
// An engine needs nothing else: methods differ in bytes and error only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvspan/result.h"
#include "kvspan/shape.h"
#include "kvspan/team.h"
#include "kvspan/tensor_view.h"

namespace kvspan {

// New rows of one layer, oldest first.
struct KvRows {
  TensorView<const float, 3> keys;          // [n, kv_heads, key_dim], after RoPE
  TensorView<const float, 3> values;        // [n, kv_heads, value_dim]
  std::span<const std::int32_t> positions;  // [n], increasing, above all earlier ones, below 2^30
};

struct Queries {
  TensorView<const float, 3> rows;          // [n, query_heads, key_dim], after RoPE, unscaled
  std::span<const std::int32_t> positions;  // [n], increasing; a query sees positions up to its own
};

// Allocated bytes by kind. `total` excludes `shared`.
struct CacheBytes {
  std::size_t full_rank = 0;
  std::size_t coefficients = 0;
  std::size_t scales = 0;
  std::size_t bases = 0;
  std::size_t sketches = 0;
  std::size_t positions = 0;
  std::size_t shared = 0;  // shared codecs, once per model
  std::size_t total = 0;
};

// Receives the next saved bytes; a failure ends the saving.
using ByteSink = std::function<Status(std::span<const std::byte>)>;

// Working memory of attend. The caller owns it and may share it between caches, one call at a time. It grows to the
// size of the largest call and keeps it.
class AttentionScratch;

// One sequence. One step at a time; const members may run concurrently, but not with a step.
// Invalid arguments (shape, position, non-finite value, layer) fail before any change. A failed call
// changes nothing, except settle on kOutOfBudget: some rows may be encoded, each token is stored
// once, and calling settle again resumes. If a layer fails a step that others finished,
// truncate(tokens()) rolls those back; learned state and evictions remain.
class KvCache {
 public:
  virtual ~KvCache() = default;

  virtual const CacheShape& shape() const noexcept = 0;
  // Canonical recipe; a cache made from it is equal.
  virtual std::string recipe() const = 0;
  // Tokens stored by every layer, evicted ones included: the next position.
  virtual std::int32_t tokens() const noexcept = 0;

  // One step. Team members pass equal arguments. All three calls end with a barrier; attend also begins with one.
  // append: values must be finite, and below 65520 if raw rows are f16.
  virtual Status append(int layer, const KvRows& rows, Team& team) = 0;
  // out: [n, query_heads, value_dim]. Fails before the first append.
  virtual Status attend(int layer, const Queries& queries, TensorView<float, 3> out,
                        AttentionScratch& scratch, Team& team) = 0;
  // Encodes rows that left the recent window. In a layer with a window or chunk, frees tokens that no query from
  // tokens() on can see.
  virtual Status settle(int layer, Team& team) = 0;

  // Removes positions >= n; n = 0 or n >= least_tokens(). Other rows and learned state stay.
  virtual Status truncate(std::int32_t n) = 0;
  // Smallest n > 0 for truncate; above 1 if later tokens caused evictions.
  virtual std::int32_t least_tokens() const noexcept = 0;
  // Empties the cache. On std::bad_alloc nothing changes.
  virtual void clear() = 0;
  // Independent copy; the two share memory until one of them writes.
  virtual Result<std::unique_ptr<KvCache>> fork() const = 0;

  virtual CacheBytes bytes() const = 0;

  // Expires when the cache is destroyed: for data about it that is stored elsewhere. A copy has its own.
  std::weak_ptr<const void> lifetime();

  // Streams tokens and learned state for CacheFactory::load (docs/reference/formats/cache.md); shared codecs by
  // checksum. Fails if unsupported, out of memory, or with the sink's error.
  virtual Status save(const ByteSink& sink) const;
  // The same bytes in one buffer.
  Result<std::vector<std::byte>> save() const;

 protected:
  KvCache() = default;
  KvCache(const KvCache&) {}
  KvCache& operator=(const KvCache&) = delete;

 private:
  std::shared_ptr<const void> life_;  // made when it is asked for
};

struct Calibration;  // kvspan/calibration.h

// Memory of caches other than the host's (kvspan/cuda_home.h).
class CacheHome {
 public:
  virtual ~CacheHome() = default;
  // An empty cache. Throws std::bad_alloc.
  virtual std::unique_ptr<KvCache> make() = 0;
  virtual std::size_t shared_bytes() const noexcept = 0;  // of tables shared by all its caches
  // A cache here equal to `host`, a cache in host memory with the same recipe and codecs.
  virtual Result<std::unique_ptr<KvCache>> take(const KvCache& host) = 0;
};

// Called by one thread at a time while codecs are fitted; returning false ends the fit with kCancelled.
using DesignProgress = std::function<bool(std::size_t done, std::size_t total)>;

// A recipe prepared for a model: codecs are fitted once and shared by all its caches, on any threads. Immutable; copies
// are cheap; owns all it uses.
class CacheFactory {
 public:
  // Fails, with key, value and supported values, if the recipe does not parse or does not fit the shape; also if it
  // needs a calibration and none is given, or if a given calibration does not fit the shape, needed or not. Does not
  // keep the calibration.
  static Result<CacheFactory> create(const CacheShape& shape, std::string_view recipe,
                                     const Calibration* calibration = nullptr,
                                     const DesignProgress& progress = nullptr);

  // The fitted codecs (docs/reference/formats/codes.md), with which load_codes needs neither calibration nor time. Small
  // if the recipe needs no calibration.
  Result<std::vector<std::byte>> save_codes() const;
  // A factory whose caches equal those of the factory that saved the codecs. Fails with kCorruptData on damaged bytes,
  // kUnsupported on another version of the fit, and kInvalidArgument, naming the difference, on another recipe or shape.
  static Result<CacheFactory> load_codes(const CacheShape& shape, std::string_view recipe,
                                         std::span<const std::byte> codes);
  // Calibration::checksum of the codecs' calibration; 0 if that was not read from bytes.
  std::uint64_t calibration_checksum() const noexcept;

  // An empty cache. Throws std::bad_alloc.
  std::unique_ptr<KvCache> make() const;
  // The cache that save() wrote, with the same recipe, shape and codecs. From then on both behave equally, bit for bit.
  // Fails on anything else with kCorruptData, field and offset; anything accepted is safe to continue with. Allocates at
  // most a small multiple of bytes.size() in addition to an empty cache.
  Result<std::unique_ptr<KvCache>> load(std::span<const std::byte> bytes) const;
  const std::string& recipe() const noexcept;  // canonical
  std::size_t shared_bytes() const noexcept;   // of the shared codecs

  // The same recipe and codecs with caches in another memory. Saved bytes are the same, and each loads the other's.
  CacheFactory kept_in(std::shared_ptr<CacheHome> home) const;
  // The same with caches in host memory.
  CacheFactory on_host() const { return kept_in(nullptr); }
  // Moves a cache of on_host() to this factory's memory. To truncate below the least_tokens() of that memory, load on
  // the host, truncate, then move.
  Result<std::unique_ptr<KvCache>> brought_home(std::unique_ptr<KvCache> cache) const;

 private:
  friend const std::shared_ptr<const struct Prepared>& prepared_of(
      const CacheFactory& factory) noexcept;
  explicit CacheFactory(std::shared_ptr<const struct Prepared> prepared);
  std::shared_ptr<const struct Prepared> prepared_;
  std::shared_ptr<CacheHome> home_;  // null: the host's memory
};

// Whether the recipe needs a calibration of the model. Fails if it does not parse.
Result<bool> needs_calibration(std::string_view recipe);

// A single cache of a recipe that needs no calibration.
Result<std::unique_ptr<KvCache>> make_cache(const CacheShape& shape, std::string_view recipe);

// Bytes of the same tokens as raw f16 rows: the reference of every ratio.
std::size_t full_rank_f16_bytes(const CacheShape& shape, std::int32_t tokens) noexcept;

std::unique_ptr<AttentionScratch, void (*)(AttentionScratch*)> make_attention_scratch();
// Its current bytes, and the maximum for calls of up to `threads` members on caches of this shape, for any number of
// tokens and queries. For 9 query heads on 3 KV heads of d = 64 the maximum is 1.7 MB and 0.6 MB per thread, for 32 on 8
// of d = 128 3.2 MB and 2.0 MB. The current bytes count everything. The maximum excludes one number per query and head
// if results of several stores are merged (sink logits, selectors, methods with stores of their own), and the working
// memory of such stores: at 2 bits and the former shape about 0.3 MB per thread and up to 20 MB of partial results. Besides the scratch, a step of a
// layer allocates one number per token if a method observes attention, copies of the chosen tokens with quest and
// shadowkv, and all rows with static:read=reconstruct. settle frees these bytes.
std::size_t attention_scratch_bytes(const AttentionScratch& scratch) noexcept;
std::size_t most_attention_scratch_bytes(const CacheShape& shape, int threads) noexcept;

}  // namespace kvspan
