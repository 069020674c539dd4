// SPDX-License-Identifier: Apache-2.0
// KV caches in the memory of a CUDA device: many sequences, one recipe, one budget.
//
// The codes are those of kvspan/cache.h: the same shape, recipe and calibration give the same
// directions, widths and steps, and attention reads codes in place, a batch of sequences of
// different lengths in one go. A step of a layer is append, attend, settle, as on the host. All
// three run on the caller's stream and return at once; none of them allocates, waits for the device
// or copies to or from it, so that a step can be recorded in a graph (a replay does what was
// recorded: the same lengths, other numbers).
//
// Recipes on the device: `full` (store=f16) and `bands` with share=auto, kv or kvgroup,
// quantizer=uniform, rope=anchor (anchor a multiple of 128), calib=file, ends=f16, escape=0,
// certify=off. Others are refused by name. Key and value dimensions up to 256, multiples of 8; up
// to 32 query heads for each group of KV heads that is coded together.
//
// Only a library built with -DKVSPAN_CUDA=ON has these functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvspan/cache.h"
#include "kvspan/result.h"

namespace kvspan {

// A cudaStream_t.
using DeviceStream = void*;

enum class DeviceNumber : std::uint8_t { kF32, kF16, kBF16 };

// Rows [tokens, heads, dim] in device memory; numbers of a row lie side by side.
struct DeviceRows {
  const void* data = nullptr;
  DeviceNumber number = DeviceNumber::kF16;
  // From token to token and head to head, in numbers; 0: dense.
  std::int64_t token_stride = 0, head_stride = 0;
};
struct DeviceOut {
  void* data = nullptr;
  DeviceNumber number = DeviceNumber::kF16;
  std::int64_t token_stride = 0, head_stride = 0;
};

// The part of a sequence in a call of a batch.
struct DeviceStep {
  std::int32_t sequence = 0;
  std::int32_t tokens = 0;  // new rows, or query positions: the last so many of the sequence
};

struct DeviceOptions {
  // Of codes and rows of all sequences; taken from the device at once. 0: what max_sequences of
  // max_tokens each need, in steps of up to 512 tokens, but at most four fifths of what is free.
  // Layers with a window need what it and a step see.
  std::size_t budget_bytes = std::size_t{1} << 30;
  std::int32_t max_sequences = 64;
  // Beside those, for a while: one that is loaded stands beside the one whose place it takes. What is
  // said to be needed leaves them out.
  std::int32_t spare_sequences = 0;
  std::int32_t max_tokens = 32768;  // of one sequence
  // Coded tokens that one launch reads, over all its sequences; what a call needs beyond that takes
  // more launches. At least max_tokens. Working memory is some 50 bytes for each and group of
  // heads.
  std::int64_t launch_tokens = 0;  // 0: max_tokens
  // Coded tokens that `rebuild` takes apart at once: 4,096 keep the device busy. Tables and working
  // memory for them are taken with the rest. 0: there is no `rebuild`.
  std::int32_t rebuild_tokens = 0;
};

// Not thread-safe; one device, the one that was current when it was made; calls go to one stream,
// or to streams that wait for each other. Wrong arguments are found before anything is touched.
// After an error of the device nothing can be said of the sequences of the call.
class DeviceCache {
 public:
  // Fails, naming what is wrong, on recipes that cannot be made or are not on the device, shapes
  // that do not fit, a budget that the device cannot give.
  static Result<std::unique_ptr<DeviceCache>> create(const CacheShape& shape,
                                                     std::string_view recipe,
                                                     const Calibration* calibration,
                                                     const DeviceOptions& options);
  // With the codes of a factory.
  static Result<std::unique_ptr<DeviceCache>> create(const CacheFactory& caches,
                                                     const DeviceOptions& options);
  ~DeviceCache();

  const CacheShape& shape() const noexcept;
  const std::string& recipe() const noexcept;  // canonical

  // An empty sequence's number. Fails when there are max_sequences and the spare ones.
  Result<std::int32_t> add();
  // An independent continuation: memory is shared until one of the two writes to it.
  Result<std::int32_t> fork(std::int32_t sequence, DeviceStream stream);
  Status remove(std::int32_t sequence);
  // Tokens that all layers of a sequence hold.
  Result<std::int32_t> tokens(std::int32_t sequence) const;

  // Rows of the sequences one after the other, keys after RoPE: [sum of tokens, kv_heads, dim].
  // Fails when the budget is spent or max_tokens reached; then nothing has been written.
  Status append(int layer, std::span<const DeviceStep> steps, const DeviceRows& keys,
                const DeviceRows& values, DeviceStream stream);
  // queries: [sum of tokens, query_heads, key_dim], after RoPE, not scaled; the last of a step is
  // at the sequence's last position, and each sees positions up to its own. out: [sum of tokens,
  // query_heads, value_dim].
  Status attend(int layer, std::span<const DeviceStep> steps, const DeviceRows& queries,
                const DeviceOut& out, DeviceStream stream);
  // The sequence's rows of positions from `first` on as attention sees them, keys after RoPE:
  // [tokens - first, kv_heads, dim]. For prompts: many queries of one sequence are answered sooner by
  // an attention to rows than from codes. Needs rebuild_tokens; refuses what a window has passed.
  Status rebuild(int layer, std::int32_t sequence, std::int32_t first, const DeviceOut& keys,
                 const DeviceOut& values, DeviceStream stream);
  // Rows that are no longer recent become codes; when all layers with a window have settled, what no
  // query from least_tokens on sees is forgotten. `tokens` of the steps is not read.
  Status settle(int layer, std::span<const DeviceStep> steps, DeviceStream stream);

  // Forgets every token at position >= n; 0, or any number from least_tokens on.
  Status truncate(std::int32_t sequence, std::int32_t n);
  // The smallest number above 0 that it can be cut at: what has been coded, and where nothing is, the
  // tokens but for the last 64 as soon as a window has passed some.
  Result<std::int32_t> least_tokens(std::int32_t sequence) const;

  // All that a sequence holds, in the bytes in which a cache of the host with the same recipe and codes
  // is saved: each loads what the other has saved and goes on from there
  // (docs/reference/formats/cache.md). Both wait for the stream. Loading gives a new sequence's number; it
  // fails as CacheFactory::load does, on more than max_tokens, and when the budget is spent.
  Status save(std::int32_t sequence, const ByteSink& sink, DeviceStream stream) const;
  Result<std::int32_t> load(std::span<const std::byte> bytes, DeviceStream stream);

  // What the sequence holds, pages that it shares counted whole; `shared` is what all have in
  // common, working memory included.
  Result<CacheBytes> bytes(std::int32_t sequence) const;
  std::size_t shared_bytes() const noexcept;
  // Bytes of the budget that are in use, shared pages counted once.
  std::size_t used_bytes() const noexcept;

  // For tests: the codes of one group and layer as the device holds them, a tile of 32 tokens after
  // the other (src/cuda/bands/bands_tiles.h), zeros where it holds none. Waits for the device.
  Result<std::vector<std::byte>> read_tiles(std::int32_t sequence, int layer, int group) const;

 private:
  class Impl;
  friend class DeviceHome;
  friend class DeviceSequence;
  friend class RecordedStep;
  explicit DeviceCache(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Eigenvalues and eigenvectors of the Gram matrices of many blocks of rows at once: the squares of a
// block's singular values and its right singular vectors, as `spectral` learns them, for all heads and
// layers of a model in one batch. In f32: values are off by some 1e-6 of a block's largest. Not
// thread-safe; memory is taken when it is made.
class DeviceGramEigen {
 public:
  // dim: numbers of a row, up to 1,024.
  static Result<std::unique_ptr<DeviceGramEigen>> create(std::int32_t blocks, std::int32_t dim);
  ~DeviceGramEigen();

  // Blocks first .. first + heads - 1 are the heads of rows [tokens, heads, dim]. Before each `solve`
  // every block needs its rows.
  Status gram(std::int32_t first, std::int32_t heads, std::int32_t tokens, const DeviceRows& rows,
              DeviceStream stream);
  Status solve(DeviceStream stream);
  // Waits for the stream. Fails if a problem of the last `solve` has no answer, naming its block.
  Status wait(DeviceStream stream) const;

  // In device memory, from `solve` to the next `gram`.
  const float* values() const noexcept;   // [blocks, dim], rising
  const float* vectors() const noexcept;  // [blocks, dim, dim]; row i belongs to value i

 private:
  class Impl;
  explicit DeviceGramEigen(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvspan
