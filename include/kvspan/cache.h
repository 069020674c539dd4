// SPDX-License-Identifier: Apache-2.0
// The KV cache of one sequence, all layers, behind one interface.
//
// A step of a layer is three calls, made by every member of a team:
//     append  the new rows enter, still full rank, so that every row can be attended at once
//     attend  blockwise softmax of the queries over everything held
//     settle  the method moves rows that are no longer recent into coded segments
// An engine needs nothing else: methods differ in bytes and error alone.
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

// Rows of one layer entering the cache, oldest first.
struct KvRows {
  TensorView<const float, 3> keys;          // [n, kv_heads, key_dim], after RoPE
  TensorView<const float, 3> values;        // [n, kv_heads, value_dim]
  std::span<const std::int32_t> positions;  // [n], increasing, beyond those before, below 2^30
};

struct Queries {
  TensorView<const float, 3> rows;          // [n, query_heads, key_dim], after RoPE, not scaled
  std::span<const std::int32_t> positions;  // [n], increasing; a row sees positions up to its own
};

// Bytes held, as allocated. `total` leaves out `shared`.
struct CacheBytes {
  std::size_t full_rank = 0;
  std::size_t coefficients = 0;
  std::size_t scales = 0;
  std::size_t bases = 0;
  std::size_t sketches = 0;
  std::size_t positions = 0;
  std::size_t shared = 0;  // codes that all sequences of a model share
  std::size_t total = 0;
};

// Takes the next bytes of what is saved; a failure ends the saving.
using ByteSink = std::function<Status(std::span<const std::byte>)>;

// Memory that attend needs besides the cache, owned by the caller and shared by all its caches (one call at a time).
// Grows to what the largest call needs and stays there.
class AttentionScratch;

// One sequence. One step at a time; const members may run beside each other, not beside a step.
// Errors leave the cache as it was before the failing call: wrong arguments (shapes, positions,
// numbers that are not finite, an unknown layer) are found before anything is touched. Where memory
// ends (kOutOfBudget), settle may have coded some rows of the layer; every token is still held
// exactly once, and settle called again goes on as if it had not failed. Layers that had finished a
// step when another failed are ahead of it: truncate(tokens()) takes their rows back; what a method
// has learnt from them or dropped because of them stays so.
class KvCache {
 public:
  virtual ~KvCache() = default;

  virtual const CacheShape& shape() const noexcept = 0;
  // Canonical text of the method; making a cache from it gives an equal one.
  virtual std::string recipe() const = 0;
  // Tokens that every layer holds or has held (dropped ones count): the next position.
  virtual std::int32_t tokens() const noexcept = 0;

  // The three calls of a step. All members of the team call with equal arguments; append and settle end with a
  // barrier, attend begins and ends with one. A layer with a window or chunk forgets, when it settles, what no query
  // from the next position on sees. Numbers have to be finite and, where the ends are f16, below 65520.
  virtual Status append(int layer, const KvRows& rows, Team& team) = 0;
  // out: [n, query_heads, value_dim]. Fails before the first append.
  virtual Status attend(int layer, const Queries& queries, TensorView<float, 3> out,
                        AttentionScratch& scratch, Team& team) = 0;
  virtual Status settle(int layer, Team& team) = 0;

  // Forgets every token at position >= n: any n from least_tokens() on, or 0. Rows before n stay as they are stored,
  // coded or not, and what a method has learnt stays.
  virtual Status truncate(std::int32_t n) = 0;
  // The smallest number of tokens above 0 that truncate can go back to now: above 1 where a method has dropped
  // tokens because of later ones.
  virtual std::int32_t least_tokens() const noexcept = 0;
  // Makes the cache empty, as a new one. Throws std::bad_alloc, which leaves it unchanged.
  virtual void clear() = 0;
  // An independent continuation; memory is shared until one of the two writes to it.
  virtual Result<std::unique_ptr<KvCache>> fork() const = 0;

  virtual CacheBytes bytes() const = 0;

  // Everything this cache holds and has learnt, for CacheFactory::load (docs/reference/formats/cache.md), piece by
  // piece. Codes that a factory's caches share are named by their checksum only. Fails where a kind of cache cannot
  // be saved, for lack of memory, and with what the sink fails with.
  virtual Status save(const ByteSink& sink) const;
  // The same bytes in one piece.
  Result<std::vector<std::byte>> save() const;
};

struct Calibration;  // kvspan/calibration.h

// Where caches are kept, if not in the host's memory (kvspan/cuda_home.h).
class CacheHome {
 public:
  virtual ~CacheHome() = default;
  // An empty cache. Throws std::bad_alloc.
  virtual std::unique_ptr<KvCache> make() = 0;
  virtual std::size_t shared_bytes() const noexcept = 0;  // of what all its caches share
  // A cache that holds what `host`, a cache in the host's memory with the home's recipe and codes, does.
  virtual Result<std::unique_ptr<KvCache>> take(const KvCache& host) = 0;
};

// Called by one thread at a time while codes are designed; false ends it with kCancelled.
using DesignProgress = std::function<bool(std::size_t done, std::size_t total)>;

// A recipe made ready for a model: codes are designed once and shared by the caches made from it, whichever threads
// they are on. Immutable; copies are cheap; owns all it uses.
class CacheFactory {
 public:
  // Fails, naming key, value and what is allowed, on a recipe that does not parse or does not fit the shape, where
  // it needs a calibration and none is given, and on a calibration that does not fit the shape, needed or not. The
  // calibration is not kept.
  static Result<CacheFactory> create(const CacheShape& shape, std::string_view recipe,
                                     const Calibration* calibration = nullptr,
                                     const DesignProgress& progress = nullptr);

  // What was designed from the calibration (docs/reference/formats/codes.md): the same recipe and shape then need
  // neither calibration nor time. Small where the recipe needs no calibration.
  Result<std::vector<std::byte>> save_codes() const;
  // A factory whose caches equal those of the factory that saved the codes. Fails with kCorruptData on damaged bytes,
  // kUnsupported on bytes of another version of kvspan's designs, and kInvalidArgument, naming what differs, on bytes
  // of another recipe or shape.
  static Result<CacheFactory> load_codes(const CacheShape& shape, std::string_view recipe,
                                         std::span<const std::byte> codes);
  // Calibration::checksum of the calibration behind the codes; 0 if that was not read from bytes.
  std::uint64_t calibration_checksum() const noexcept;

  // An empty cache. Throws std::bad_alloc.
  std::unique_ptr<KvCache> make() const;
  // The cache that save() wrote, of the same recipe, shape and codes: from here on the two do the same, bit for bit.
  // Fails with kCorruptData, naming field and byte, on anything else; whatever it accepts is safe to go on with.
  // Allocates no more than a small multiple of bytes.size() beside what an empty cache has.
  Result<std::unique_ptr<KvCache>> load(std::span<const std::byte> bytes) const;
  const std::string& recipe() const noexcept;  // canonical
  std::size_t shared_bytes() const noexcept;   // of the codes that all its caches share

  // The same recipe and codes, its caches made by `home`. What they save is what the host's do, and
  // either loads the other's.
  CacheFactory kept_in(std::shared_ptr<CacheHome> home) const;
  // The same, its caches in the host's memory; and such a cache brought to where this factory keeps its own. One that
  // is to be cut is loaded and cut there first: a home may not go back as far.
  CacheFactory on_host() const { return kept_in(nullptr); }
  Result<std::unique_ptr<KvCache>> brought_home(std::unique_ptr<KvCache> cache) const;

 private:
  friend const std::shared_ptr<const struct Prepared>& prepared_of(
      const CacheFactory& factory) noexcept;
  explicit CacheFactory(std::shared_ptr<const struct Prepared> prepared);
  std::shared_ptr<const struct Prepared> prepared_;
  std::shared_ptr<CacheHome> home_;  // null: the host's memory
};

// Whether the recipe can only be made with a calibration of the model. Fails where it does not parse.
Result<bool> needs_calibration(std::string_view recipe);

// A cache of its own, for a recipe that needs no calibration.
Result<std::unique_ptr<KvCache>> make_cache(const CacheShape& shape, std::string_view recipe);

// Bytes of the same tokens in f16 at full rank: what every ratio is taken against.
std::size_t full_rank_f16_bytes(const CacheShape& shape, std::int32_t tokens) noexcept;

std::unique_ptr<AttentionScratch, void (*)(AttentionScratch*)> make_attention_scratch();
// Bytes that it holds now, and the most that it can ever hold by calls of up to `threads` members on caches of this
// shape, whatever their tokens and queries. For 9 query heads on 3 KV heads of d = 64 that is 1.7 MB and 0.6 MB for
// each thread, for 32 on 8 of d = 128 3.2 MB and 2.0 MB. The bound leaves out one number per query and head where
// the parts of a call meet (sinks, selectors, methods with stores of their own), and what such stores work in: for
// the former shape and 2 bits some 0.3 MB for each thread and up to 20 MB of partial results. The bytes held count
// both. Beside the scratch a step of a layer needs one number per token where a method watches attention; a selector
// that reads some tokens (quest, shadowkv) copies of those that it reads; and static:read=reconstruct all rows.
// These bytes are freed when the layer settles.
std::size_t attention_scratch_bytes(const AttentionScratch& scratch) noexcept;
std::size_t most_attention_scratch_bytes(const CacheShape& shape, int threads) noexcept;

}  // namespace kvspan
