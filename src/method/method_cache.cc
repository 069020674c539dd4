// SPDX-License-Identifier: Apache-2.0
#include "method/method_cache.h"

#include <algorithm>
#include <new>
#include <utility>

#include "attention/attend.h"
#include "attention/attend_bands.h"
#include "attention/received.h"
#include "base/expect.h"
#include "base/fail.h"
#include "method/reconstruct.h"

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

// Heads first .. first + count - 1 of rows of all heads.
template <class T>
TensorView<T, 3> heads_of(const TensorView<T, 3>& rows, std::int32_t first, std::int32_t count) {
  TensorView<T, 3> part = rows;
  if (part.data != nullptr) part.data += static_cast<std::size_t>(first) * rows.strides[1];
  part.shape[1] = static_cast<std::size_t>(count);
  return part;
}

// Numbers of the tokens that were read, at their places among all.
std::vector<float> spread(const std::vector<float>& numbers,
                          const std::vector<std::uint8_t>& mask) {
  std::vector<float> all(mask.size(), 0.0f);
  auto from = numbers.begin();
  for (std::size_t i = 0; i < mask.size(); ++i) {
    if (mask[i] != 0) all[i] = *from++;
  }
  return all;
}

}  // namespace

MethodCache::Member::Member(const LayerShape& layer, const PreparedGroup& prepared,
                            const std::shared_ptr<Ledger>& ledger)
    : group(layer, prepared.options, ledger),
      policy(prepared.make_policy ? prepared.make_policy(ledger) : nullptr),
      selector(prepared.make_selector ? prepared.make_selector(ledger) : nullptr),
      observed_queries(prepared.observed_queries) {
  if (prepared.bands) group.set_bands(prepared.bands(ledger));
}

MethodCache::Member::Member(const Member& other)
    : group(other.group),
      policy(other.policy ? other.policy->clone() : nullptr),
      selector(other.selector ? other.selector->clone() : nullptr),
      observed_queries(other.observed_queries) {}

std::int32_t MethodCache::Member::wants(std::int32_t queries) const noexcept {
  const std::int32_t selected = selector ? selector->observed(queries) : 0;
  // A few last queries are those of a prompt; a single one is decoding.
  const bool counts = queries > 1 || observed_queries == kAllQueries;
  return std::min(queries, std::max(selected, counts ? observed_queries : 0));
}

Status MethodCache::Member::settle(std::int32_t queries) {
  // An exception must not leave one thread while the others wait for it.
  try {
    chosen.reset();
    if (!received.empty()) {
      if (!mask.empty()) received = spread(received, mask);
      if (group.options().scores) group.receive(received);
      if (selector) selector->observe(group, received, queries);
      received.clear();
    }
    if (selector) KVSPAN_CHECK_OK(selector->settle(group, queries));
    if (policy) KVSPAN_CHECK_OK(policy->settle(group));
    return {};
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::kOutOfBudget, "no memory to code {} waiting tokens", group.waiting());
  }
}

MethodCache::Layer::Layer(const LayerShape& shape, const PreparedLayer& from,
                          const std::shared_ptr<Ledger>& ledger)
    : reconstruct(from.reconstruct) {
  members.reserve(from.groups.size());
  for (const PreparedGroup& group : from.groups) members.emplace_back(shape, group, ledger);
  list_groups();
}

MethodCache::Layer::Layer(const Layer& other)
    : members(other.members), queries(other.queries), reconstruct(other.reconstruct) {
  list_groups();
}

void MethodCache::Layer::list_groups() {
  for (const Member& member : members) {
    groups.push_back({member.group.options().first_head, &member.group.list()});
  }
}

// Whether every call reads the lists themselves.
bool MethodCache::Layer::reads_lists() const noexcept {
  return !reconstruct && std::none_of(members.begin(), members.end(),
                                      [](const Member& m) { return m.selector != nullptr; });
}

std::int32_t MethodCache::Layer::wants(std::int32_t count) const noexcept {
  std::int32_t most = 0;
  for (const Member& member : members) most = std::max(most, member.wants(count));
  return most;
}

// What a call needs beside the lists: by the leader, before the others go on.
Status MethodCache::Layer::prepare(const LayerShape& shape, const Queries& call,
                                   std::int32_t observed) {
  const std::int32_t per_head = shape.query_heads / shape.kv_heads;
  try {
    reading = groups;
    for (std::size_t i = 0; i < members.size(); ++i) {
      Member& member = members[i];
      const GroupOptions& options = member.group.options();
      member.chosen.reset();
      member.mask.clear();
      Queries part = call;
      part.rows = heads_of(call.rows, options.first_head * per_head, options.heads * per_head);
      if (member.selector && member.selector->choose(member.group, part, member.mask)) {
        member.chosen = std::make_unique<SegmentList>(member.group.list());
        member.chosen->select(0, member.mask);
      }
      if (reconstruct) {
        member.chosen = std::make_unique<SegmentList>(
            reconstructed(member.chosen ? *member.chosen : member.group.list()));
      }
      if (member.chosen) reading[i].list = member.chosen.get();
    }
    received.clear();
    if (observed == 0) return {};
    lse.resize(call.positions.size() * static_cast<std::size_t>(shape.query_heads));
    for (std::size_t i = 0; i < members.size(); ++i) {
      Member& member = members[i];
      const auto tokens = static_cast<std::size_t>(reading[i].list->tokens());
      member.received.assign(tokens, 0.0f);
      received.push_back({member.received.data(), {1, tokens}});
    }
    return {};
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::kOutOfBudget, "no memory to attend to {} queries",
                call.positions.size());
  }
}

MethodCache::MethodCache(std::shared_ptr<const Prepared> prepared)
    : prepared_(std::move(prepared)), ledger_(std::make_shared<Ledger>()) {
  layers_.reserve(prepared_->layers.size());
  for (std::size_t i = 0; i < prepared_->layers.size(); ++i) {
    layers_.emplace_back(prepared_->shape.layers[i], prepared_->layers[i], ledger_);
  }
}

std::int32_t MethodCache::tokens() const noexcept {
  std::int32_t least = layers_.front().members.front().group.next_position();
  for (const Layer& layer : layers_) {
    for (const Member& member : layer.members) {
      least = std::min(least, member.group.next_position());
    }
  }
  return least;
}

MethodCache::Layer& MethodCache::layer_at(int layer) {
  KVSPAN_EXPECT(layer >= 0 && static_cast<std::size_t>(layer) < layers_.size(),
                "the shape has this layer");
  return layers_[static_cast<std::size_t>(layer)];
}

Status MethodCache::append(int layer, const KvRows& rows, Team& team) {
  Layer& to = layer_at(layer);
  const LayerShape& shape = prepared_->shape.layers[static_cast<std::size_t>(layer)];
  const auto n = static_cast<std::int32_t>(rows.positions.size());
  KVSPAN_EXPECT(shaped(rows.keys, rows.positions.size(), shape.kv_heads, shape.key_dim),
                "keys are [n, kv_heads, key_dim], one position each");
  KVSPAN_EXPECT(shaped(rows.values, rows.positions.size(), shape.kv_heads, shape.value_dim),
                "values are [n, kv_heads, value_dim], one position each");
  const std::size_t elements = rows.positions.size() * static_cast<std::size_t>(shape.kv_heads) *
                               static_cast<std::size_t>(shape.key_dim + shape.value_dim);
  const bool leader_alone = elements <= kLeaderElements;
  const auto write = [&](Member& member, std::int32_t head, std::int32_t begin, std::int32_t end) {
    SegmentList& list = member.group.list();
    const std::int32_t first_head = member.group.options().first_head;
    list.write(list.tokens() - n, heads_of(rows.keys, first_head, list.shape().heads),
               heads_of(rows.values, first_head, list.shape().heads), head, begin, end);
  };
  if (team.leader()) {
    // An exception must not leave the leader while the others wait for it at the barrier.
    std::size_t done = 0;
    to.extended = true;
    try {
      for (; done < to.members.size(); ++done) {
        to.members[done].group.list().extend(rows.positions);
      }
    } catch (const std::bad_alloc&) {
      to.extended = false;
      while (done-- > 0) to.members[done].group.list().truncate(rows.positions.front());
    }
    if (to.extended && leader_alone) {
      for (Member& member : to.members) {
        for (std::int32_t h = 0; h < member.group.options().heads; ++h) write(member, h, 0, n);
      }
    }
  }
  team.barrier();
  const bool extended = to.extended;
  if (extended && !leader_alone) {
    const std::int32_t runs = (n + kAppendRows - 1) / kAppendRows;
    for (int i; (i = team.take()) < runs * shape.kv_heads;) {
      std::int32_t head = i % shape.kv_heads;
      auto member = to.members.begin();
      for (; head >= member->group.options().heads; ++member) head -= member->group.options().heads;
      const std::int32_t begin = i / shape.kv_heads * kAppendRows;
      write(*member, head, begin, std::min(n, begin + kAppendRows));
    }
  }
  team.barrier();  // also keeps the outcome in place until everybody has read it
  if (!extended) {
    return fail(ErrorCode::kOutOfBudget, "no memory for {} more tokens in layer {} after {}", n,
                layer, tokens());
  }
  return {};
}

Status MethodCache::attend(int layer, const Queries& queries, TensorView<float, 3> out,
                           AttentionScratch& scratch, Team& team) {
  Layer& from = layer_at(layer);
  const LayerShape& shape = prepared_->shape.layers[static_cast<std::size_t>(layer)];
  const auto n = static_cast<std::int32_t>(queries.positions.size());
  const std::int32_t observed = from.wants(n);
  if (team.leader()) from.queries = n;
  if (from.members.front().group.bands() != nullptr) {
    return attend_with_bands(from, shape, queries, out, scratch, team);
  }
  if (observed == 0 && from.reads_lists()) {
    return attend_segments(shape, from.groups, queries, out, {}, scratch, team);
  }
  if (team.leader()) from.prepared = from.prepare(shape, queries, observed);
  team.barrier();
  KVSPAN_CHECK_OK(from.prepared);
  TensorView<float, 2> lse;
  if (observed > 0) {
    lse = {from.lse.data(),
           {queries.positions.size(), static_cast<std::size_t>(shape.query_heads)}};
  }
  KVSPAN_CHECK_OK(attend_segments(shape, from.reading, queries, out, lse, scratch, team));
  if (observed == 0) return {};
  return received_attention(shape, from.reading, queries, {lse.data, lse.shape, lse.strides},
                            n - observed, from.received, scratch, team);
}

// The list's tokens and those of bands apart, then merged by their log-sum-exps.
Status MethodCache::attend_with_bands(Layer& from, const LayerShape& shape, const Queries& queries,
                                      const TensorView<float, 3>& out, AttentionScratch& scratch,
                                      Team& team) {
  const std::size_t n = queries.positions.size(), heads = out.shape[1], dim = out.shape[2];
  if (team.leader()) {
    try {
      from.lse.resize(2 * n * heads);
      from.banded.resize(n * heads * dim);
      from.prepared = {};
    } catch (const std::bad_alloc&) {
      from.prepared = fail(ErrorCode::kOutOfBudget, "no memory to attend to {} queries", n);
    }
  }
  team.barrier();
  KVSPAN_CHECK_OK(from.prepared);
  const TensorView<float, 2> lse(from.lse.data(), {n, heads});
  const TensorView<float, 2> other_lse(from.lse.data() + n * heads, {n, heads});
  const TensorView<float, 3> other(from.banded.data(), {n, heads, dim});
  KVSPAN_CHECK_OK(attend_segments(shape, from.groups, queries, out, lse, scratch, team));
  const std::int32_t per_head = shape.query_heads / shape.kv_heads;
  for (Member& member : from.members) {
    const BandsTokens& bands = *member.group.bands();
    if (bands.keys.empty()) continue;
    const GroupOptions& options = member.group.options();
    const std::int32_t first = options.first_head * per_head, count = options.heads * per_head;
    Queries part = queries;
    part.rows = heads_of(queries.rows, first, count);
    TensorView<float, 2> part_lse = lse, part_other_lse = other_lse;
    for (TensorView<float, 2>* view : {&part_lse, &part_other_lse}) {
      view->data += first;
      view->shape[1] = static_cast<std::size_t>(count);
    }
    const TensorView<float, 3> part_other = heads_of(other, first, count);
    KVSPAN_CHECK_OK(attend_bands(shape, bands.keys, bands.value_store(), part, part_other,
                                 part_other_lse, bands_scratch_, team));
    if (team.leader()) {
      merge_attention(heads_of(out, first, count), part_lse,
                      {part_other.data, part_other.shape, part_other.strides},
                      {part_other_lse.data, part_other_lse.shape, part_other_lse.strides});
    }
  }
  team.barrier();
  return {};
}

Status MethodCache::settle(int layer, Team& team) {
  Layer& at = layer_at(layer);
  for (int i; (i = team.take()) < static_cast<int>(at.members.size());) {
    Member& member = at.members[static_cast<std::size_t>(i)];
    member.outcome = member.settle(at.queries);
  }
  team.barrier();
  for (const Member& member : at.members) KVSPAN_CHECK_OK(member.outcome);
  return {};
}

Status MethodCache::truncate(std::int32_t n) {
  if (n <= 0) {
    clear();
    return {};
  }
  std::int32_t least = 0;
  for (const Layer& layer : layers_) {
    for (const Member& member : layer.members) least = std::max(least, member.group.changed_at());
  }
  if (n < least && n < tokens()) {
    return fail(ErrorCode::kInvalidArgument,
                "cannot go back to {} tokens: {} has already coded or dropped tokens because of "
                "those up to {}; allowed: 0, or {} and more",
                n, prepared_->recipe, least, least);
  }
  for (Layer& layer : layers_) {
    for (Member& member : layer.members) member.group.truncate(n);
  }
  return {};
}

void MethodCache::clear() {
  for (Layer& layer : layers_) {
    for (Member& member : layer.members) {
      member.group.clear();
      if (member.policy) member.policy->clear();
      if (member.selector) member.selector->clear();
      member.received.clear();
    }
  }
}

Result<std::unique_ptr<KvCache>> MethodCache::fork() const {
  try {
    return std::unique_ptr<KvCache>(new MethodCache(*this));
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::kOutOfBudget, "no memory for a copy of {} tokens", tokens());
  }
}

CacheBytes MethodCache::bytes() const {
  CacheBytes bytes;
  std::vector<const Code*> codes;
  for (const Layer& layer : layers_) {
    for (const Member& member : layer.members) {
      member.group.list().add_bytes(bytes, codes);
      bytes.positions += member.group.score_bytes();
      if (const BandsTokens* bands = member.group.bands()) {
        bytes.coefficients += bands->keys.payload_bytes();
        bytes.scales += bands->keys.gain_bytes();
        if (bands->values) {
          bytes.coefficients += bands->values->payload_bytes();
          bytes.scales += bands->values->gain_bytes();
        }
      }
      if (member.policy) {
        bytes.sketches += member.policy->sketch_bytes();
        member.policy->add_codes(codes);
      }
      if (member.selector) bytes.positions += member.selector->bytes();
    }
  }
  finish_bytes(std::move(codes), bytes);
  // Those that the recipe prepared, whether this sequence has used them yet or not.
  bytes.shared = prepared_->shared->bytes(MemoryKind::kShared);
  return bytes;
}

const Group& MethodCache::group(int layer, std::size_t index) const {
  return layers_[static_cast<std::size_t>(layer)].members[index].group;
}

const SegmentList& MethodCache::last_read(int layer, std::size_t index) const {
  const Member& member = layers_[static_cast<std::size_t>(layer)].members[index];
  return member.chosen ? *member.chosen : member.group.list();
}

const Policy* MethodCache::policy(int layer, std::size_t index) const {
  return layers_[static_cast<std::size_t>(layer)].members[index].policy.get();
}

}  // namespace kvspan
