// SPDX-License-Identifier: Apache-2.0
#include "api/segment_cache.h"

#include <algorithm>
#include <new>

#include "attention/attend.h"
#include "base/expect.h"
#include "base/fail.h"

namespace kvspan {
namespace {

// Rows an append's item writes; and the elements up to which the leader writes alone, sooner than
// the others could help.
constexpr std::int32_t kAppendRows = 64;
constexpr std::size_t kLeaderElements = 8192;

bool shaped(const TensorView<const float, 3>& view, std::size_t n, std::int32_t heads,
            std::int32_t dim) {
  return view.shape[0] == n && view.shape[1] == static_cast<std::size_t>(heads) &&
         view.shape[2] == static_cast<std::size_t>(dim);
}

}  // namespace

SegmentCache::SegmentCache(const CacheShape& shape, Element element)
    : shape_(std::make_shared<const CacheShape>(shape)),
      element_(element),
      ledger_(std::make_shared<Ledger>()) {
  layers_.reserve(shape.layers.size());
  for (const LayerShape& layer : shape.layers) {
    layers_.emplace_back(GroupShape{layer.kv_heads, layer.key_dim, layer.value_dim, element},
                         ledger_);
  }
}

std::string SegmentCache::recipe() const {
  return element_ == Element::kF16 ? "full" : "full:store=f32";
}

std::int32_t SegmentCache::tokens() const noexcept {
  std::int32_t least = layers_.front().next_position();
  for (const SegmentList& layer : layers_) least = std::min(least, layer.next_position());
  return least;
}

SegmentList& SegmentCache::list(int layer) {
  KVSPAN_EXPECT(layer >= 0 && static_cast<std::size_t>(layer) < layers_.size(),
                "the shape has this layer");
  return layers_[static_cast<std::size_t>(layer)];
}

Status SegmentCache::append(int layer, const KvRows& rows, Team& team) {
  SegmentList& to = list(layer);
  const GroupShape& group = to.shape();
  const auto n = static_cast<std::int32_t>(rows.positions.size());
  KVSPAN_EXPECT(shaped(rows.keys, rows.positions.size(), group.heads, group.key_dim),
                "keys are [n, kv_heads, key_dim], one position each");
  KVSPAN_EXPECT(shaped(rows.values, rows.positions.size(), group.heads, group.value_dim),
                "values are [n, kv_heads, value_dim], one position each");
  const std::size_t elements = rows.positions.size() * static_cast<std::size_t>(group.heads) *
                               static_cast<std::size_t>(group.key_dim + group.value_dim);
  const bool leader_alone = elements <= kLeaderElements;
  if (team.leader()) {
    // An exception must not leave the leader while the others wait for it at the barrier.
    try {
      to.extend(rows.positions);
      extended_ = true;
    } catch (const std::bad_alloc&) {
      extended_ = false;
    }
    if (extended_ && leader_alone) {
      const std::int32_t first = to.tokens() - n;
      for (std::int32_t h = 0; h < group.heads; ++h)
        to.write(first, rows.keys, rows.values, h, 0, n);
    }
  }
  team.barrier();
  const bool extended = extended_;
  if (extended && !leader_alone) {
    const std::int32_t first = to.tokens() - n;
    const std::int32_t runs = (n + kAppendRows - 1) / kAppendRows;
    for (int i; (i = team.take()) < runs * group.heads;) {
      const std::int32_t begin = i / group.heads * kAppendRows;
      to.write(first, rows.keys, rows.values, i % group.heads, begin,
               std::min(n, begin + kAppendRows));
    }
  }
  team.barrier();  // also keeps the outcome in place until everybody has read it
  if (!extended) {
    return fail(ErrorCode::kOutOfBudget, "no memory for {} more tokens in layer {} after {}", n,
                layer, to.tokens());
  }
  return {};
}

Status SegmentCache::attend(int layer, const Queries& queries, TensorView<float, 3> out,
                            AttentionScratch& scratch, Team& team) {
  const SegmentList& from = list(layer);
  return attend_segments(shape_->layers[static_cast<std::size_t>(layer)], from, queries, out, {},
                         scratch, team);
}

Status SegmentCache::settle(int layer, Team& team) {
  list(layer);
  team.barrier();
  return {};
}

Status SegmentCache::truncate(std::int32_t n) {
  for (SegmentList& layer : layers_) layer.truncate(n);
  return {};
}

void SegmentCache::clear() {
  for (SegmentList& layer : layers_) layer.clear();
}

Result<std::unique_ptr<KvCache>> SegmentCache::fork() const {
  return std::unique_ptr<KvCache>(std::make_unique<SegmentCache>(*this));
}

CacheBytes SegmentCache::bytes() const {
  CacheBytes bytes;
  for (const SegmentList& layer : layers_) layer.add_bytes(bytes);
  return bytes;
}

}  // namespace kvspan
