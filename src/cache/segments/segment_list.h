// SPDX-License-Identifier: Apache-2.0
// The cache of one group of KV heads: a list of segments, oldest token first. Attention runs one
// blockwise softmax over the list.
//
// Full-rank rows live in segments of fixed capacity, grown on demand: 32, 32, 64, 128, then 256
// tokens each. A short text so allocates little, and where a segment ends depends on how many
// tokens came before and not on how they were appended. 256 tokens of one head with 64 dimensions
// in f16 are 32 KiB: long enough to stream, short enough that the unused tail stays small. A method
// that moves rows out again asks for small segments instead (SegmentGrowth), so that memory returns
// as they leave.
//
// Copying the list (a fork) shares the segments' memory; whoever writes first copies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/memory.h"
#include "cache/segments/segment.h"
#include "kvspan/cache.h"
#include "kvspan/tensor_view.h"

namespace kvspan {

class Code;

// The KV heads that share segments, and how full-rank rows are stored.
struct GroupShape {
  std::int32_t heads = 0;
  std::int32_t key_dim = 0;
  std::int32_t value_dim = 0;
  Element element = Element::kF16;

  bool operator==(const GroupShape&) const = default;
};

// Capacities of full-rank segments.
struct SegmentGrowth {
  std::int32_t sink = 0;    // > 0: of the first segment, whose tokens stay
  std::int32_t least = 32;  // the others double from here
  std::int32_t most = 256;
  std::int32_t joined = 1024;  // tokens of coded segments that are joined, at most
};

class SegmentList {
 public:
  SegmentList(const GroupShape& shape, std::shared_ptr<Ledger> ledger,
              const SegmentGrowth& growth = {});

  const GroupShape& shape() const noexcept { return shape_; }
  const SegmentGrowth& growth() const noexcept { return growth_; }
  std::span<const Segment> segments() const noexcept { return segments_; }
  std::int32_t tokens() const noexcept { return tokens_; }
  const std::shared_ptr<Ledger>& ledger() const noexcept { return ledger_; }
  // Position of a token by its index.
  std::int32_t position(std::int32_t token) const noexcept;
  // Tokens before `position`. Found from the end: cheap for the newest ones.
  std::int32_t index_of(std::int32_t position) const noexcept;
  // One beyond the last position held; 0 when empty.
  std::int32_t next_position() const noexcept;

  // Makes room for full-rank rows at `positions` (increasing, beyond every position held); their
  // contents are undefined until written. One thread, nobody reading. Throws std::bad_alloc, and
  // then holds what it held.
  void extend(std::span<const std::int32_t> positions);
  // Writes one head of the rows that `extend` made room for: row i of `keys` and `values`, each
  // [n, heads, dim], goes to token index first + i, for i in [begin, end). Calls for different
  // (rows, head) may run in parallel.
  void write(std::int32_t first, const TensorView<const float, 3>& keys,
             const TensorView<const float, 3>& values, std::int32_t head, std::int32_t begin,
             std::int32_t end) noexcept;

  // Takes a segment whole, with positions beyond every position held, made for this shape.
  void append(Segment segment);
  // Rows first .. first + n - 1 as floats, keys [n, heads, key_dim] as attention sees them (after
  // RoPE), values [n, heads, value_dim], and their positions [n]. Coded rows are reconstructed.
  void read(std::int32_t first, const TensorView<float, 3>& keys,
            const TensorView<float, 3>& values, std::span<std::int32_t> positions) const;
  // The segment, made of the rows at first .. first + segment.tokens() - 1 (full rank, so far),
  // takes their place, joined with the coded segments before it where that is possible
  // (cache/segments/join_segments.h). Throws std::bad_alloc, and then holds what it held.
  void replace(std::int32_t first, Segment segment);
  // Another representation of the same tokens of segments()[index].
  void exchange(std::size_t index, Segment segment);
  // Forgets the tokens with keep[i] == 0, i counting from `first` on; the memory of full-rank rows
  // returns. Of coded segments whole units go (Segment::unit). Strong exception guarantee.
  void select(std::int32_t first, std::span<const std::uint8_t> keep);

  // Forgets positions >= position and returns the memory of segments left empty.
  void truncate(std::int32_t position);
  void clear() noexcept;

  // Bytes of every buffer reachable from here, those shared with forks included.
  std::size_t full_rank_bytes() const noexcept;
  std::size_t position_bytes() const noexcept;  // residual norms included
  // Adds them to `bytes` by kind, but for the codes', which several lists may share: those are
  // added to `codes`, once for each use.
  void add_bytes(CacheBytes& bytes, std::vector<const Code*>& codes) const;

 private:
  Segment empty_segment(std::int32_t capacity) const;
  void copy_rows(const Segment& from, std::int32_t token, Segment& to) const;
  Segment selected(const Segment& from, std::span<const std::uint8_t> keep, bool open) const;
  void forget_after(std::int32_t tokens);

  GroupShape shape_;
  SegmentGrowth growth_;
  std::shared_ptr<Ledger> ledger_;
  std::vector<Segment> segments_;
  std::int32_t tokens_ = 0;
};

// Adds the bytes of codes, each once however often it is named, and then what `total` is to be.
void finish_bytes(std::vector<const Code*> codes, CacheBytes& bytes);

}  // namespace kvspan
