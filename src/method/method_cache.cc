// SPDX-License-Identifier: Apache-2.0
#include "method/method_cache.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <new>
#include <set>
#include <utility>

#include "attention/add_sinks.h"
#include "attention/received.h"
#include "attention/scratch.h"
#include "base/copy_status.h"
#include "base/fail.h"
#include "base/help_wanted.h"
#include "cache/visible.h"
#include "method/check_call.h"
#include "method/reconstruct.h"

// Returns what every member finds alike, behind a barrier: nobody goes on to another call while
// somebody is still looking at what it would change.
#define KVSPAN_CHECK_BY_ALL(status, team) \
  if (Status found = (status); !found) {  \
    (team).barrier();                     \
    return found;                         \
  }

namespace kvspan {
namespace {

// Rows an append's item writes; and the elements up to which the leader writes alone, sooner than
// the others could help.
constexpr std::int32_t kAppendRows = 64;
constexpr std::size_t kLeaderElements = 8192;

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
  if (prepared.make_store) group.add_store(prepared.make_store(ledger));
}

MethodCache::Member::Member(const Member& other)
    : group(other.group),
      policy(other.policy ? other.policy->clone() : nullptr),
      selector(other.selector ? other.selector->clone() : nullptr),
      observed_queries(other.observed_queries),
      received(other.received_by_token()) {}

std::int32_t MethodCache::Member::wants(std::int32_t queries) const noexcept {
  const std::int32_t selected = selector ? selector->observed(queries) : 0;
  // A few last queries are those of a prompt; a single one is decoding.
  const bool counts = queries > 1 || observed_queries == kAllQueries;
  return std::min(queries, std::max(selected, counts ? observed_queries : 0));
}

std::vector<float> MethodCache::Member::received_by_token() const {
  if (received.empty()) return {};
  std::vector<float> all = mask.empty() ? received : spread(received, mask);
  // Rows may have come or gone since, at the end; and what overflowed says nothing.
  all.resize(static_cast<std::size_t>(group.list().tokens()), 0.0f);
  for (float& weight : all) {
    if (!std::isfinite(weight)) weight = 0.0f;
  }
  return all;
}

// A selector may yet drop rows.
int MethodCache::Member::tasks() const noexcept {
  return policy && !selector ? policy->tasks(group) : 0;
}

// Where memory ends, settling makes do without, or says so.
void MethodCache::Member::open_tasks() noexcept {
  const int count = tasks();
  if (count == 0) return;
  try {
    policy->open_tasks(group);
    opened = count;
  } catch (const std::bad_alloc&) {
    policy->close_tasks();
  }
}

void MethodCache::Member::run_task(int task) noexcept {
  try {
    policy->run_task(group, task);
  } catch (const std::bad_alloc&) {
    // Left to settle.
  }
}

Status MethodCache::Member::settle(std::int32_t queries, std::int32_t first_needed) {
  opened = 0;
  // No exception may leave one thread while others wait for it; what std::bad_alloc ended goes on from there.
  try {
    read_all();
    if (!received.empty()) {
      const std::vector<float> given = received_by_token();
      if (group.options().scores && !group_received) group.receive(given);
      group_received = true;
      if (selector) selector->observe(given);
      group_received = false;
      received = std::vector<float>();  // nothing of a step's own memory stays
    }
    mask = std::vector<std::uint8_t>();
    earlier.reset();
    if (selector) KVSPAN_CHECK_OK(selector->settle(group, queries));
    if (group.options().follows) return {};
    if (policy) KVSPAN_CHECK_OK(policy->settle(group));
    forget(first_needed);
    return {};
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::kOutOfBudget, "no memory to code {} waiting tokens", group.waiting());
  }
}

void MethodCache::Member::forget(std::int32_t first_needed) {
  if (first_needed <= 0) return;
  const std::int32_t end =
      policy ? std::min(first_needed, policy->forgettable(group)) : first_needed;
  if (const std::int32_t gone = group.forget_before(end); gone > 0) {
    if (policy) policy->forgot(gone);
    if (selector) selector->forgot(gone);
  }
  for (Group* led : group.led()) led->forget_before(end);
}

// The tokens at the positions that are marked, of every store, and those that are read with them.
void MethodCache::Member::choose(const std::vector<std::uint8_t>& keep) {
  chosen_rows = group.rows().chosen_rows(keep);
  for (const auto& store : group.added()) chosen.push_back(store->chosen(keep));
}

// Attention is received anew, by the tokens of the list that the call reads.
void MethodCache::Member::observe() {
  const SegmentList& all = group.list();
  const SegmentList& some = reads_rows().list();
  std::vector<float> nothing(static_cast<std::size_t>(some.tokens()), 0.0f);
  std::vector<std::uint8_t> read;  // where not all are
  if (some.tokens() < all.tokens()) read.resize(static_cast<std::size_t>(all.tokens()));
  for (std::int32_t t = 0, i = 0; !read.empty() && i < some.tokens(); ++t) {
    if (all.position(t) != some.position(i)) continue;
    read[static_cast<std::size_t>(t)] = 1;
    ++i;
  }
  earlier = {std::move(received), std::move(mask)};
  received = std::move(nothing);
  mask = std::move(read);
}

// The list's tokens as full-rank rows.
void MethodCache::Member::rebuild() {
  chosen_rows = std::make_unique<SegmentStore>(reconstructed(reads_rows().list()));
}

void MethodCache::Member::read_all() noexcept {
  chosen_rows.reset();
  chosen.clear();
}

std::vector<const TokenStore*> MethodCache::Member::reads() const {
  std::vector<const TokenStore*> all{&reads_rows()};
  for (std::size_t i = 0; i < group.added().size(); ++i) {
    all.push_back(i < chosen.size() && chosen[i] ? chosen[i].get() : group.added()[i].get());
  }
  return all;
}

MethodCache::Layer::Layer(const LayerShape& shape, const PreparedLayer& from,
                          const std::shared_ptr<Ledger>& ledger)
    : reconstruct(from.reconstruct) {
  members.reserve(from.groups.size());
  limit = std::numeric_limits<float>::infinity();
  for (const PreparedGroup& group : from.groups) {
    members.emplace_back(shape, group, ledger);
    if (group.options.ends == Element::kF16) limit = kF16Limit;
  }
  list_stores();
}

MethodCache::Layer::Layer(const Layer& other)
    : members(other.members),
      queries(other.queries),
      limit(other.limit),
      reconstruct(other.reconstruct) {
  list_stores();
}

// The members stay where they are, and so do the lists.
MethodCache::Layer::Layer(Layer&& other) noexcept
    : members(std::move(other.members)),
      lists(std::move(other.lists)),
      queries(other.queries),
      limit(other.limit),
      reconstruct(other.reconstruct) {}

void MethodCache::Layer::list_stores() {
  lists.clear();
  for (const Member& member : members) {
    lists.push_back({member.group.options().first_head, &member.group.rows()});
  }
}

// Whether every call reads the lists as they are, and nothing else.
bool MethodCache::Layer::reads_lists() const noexcept {
  return !reconstruct && std::none_of(members.begin(), members.end(), [](const Member& m) {
    return m.selector != nullptr || !m.group.added().empty();
  });
}

std::int32_t MethodCache::Layer::wants(std::int32_t count) const noexcept {
  std::int32_t most = 0;
  for (const Member& member : members) most = std::max(most, member.wants(count));
  return most;
}

// What a call needs beside the lists: by the leader, before the others go on.
Status MethodCache::Layer::prepare(const LayerShape& shape, const Queries& call,
                                   std::int32_t observed, AttentionScratch& scratch) {
  const std::int32_t per_head = shape.query_heads / shape.kv_heads;
  const std::size_t n = call.positions.size(), heads = call.rows.shape[1];
  try {
    lse = {scratch.lse(n * heads), {n, heads}};
    received.clear();
    reading.assign(1, lists);
    for (std::size_t i = 0; i < members.size(); ++i) {
      Member& member = members[i];
      const GroupOptions& options = member.group.options();
      member.read_all();
      member.earlier.reset();
      Queries part = call;
      part.rows = heads_of(call.rows, options.first_head * per_head, options.heads * per_head);
      std::vector<std::uint8_t> keep;
      if (member.selector && member.selector->choose(member.group, part, keep)) member.choose(keep);
      if (reconstruct) member.rebuild();
      const std::vector<const TokenStore*> reads = member.reads();
      reading.resize(std::max(reading.size(), reads.size()));
      reading[0][i].store = reads[0];
      for (std::size_t s = 1; s < reads.size(); ++s) {
        if (!reads[s]->empty()) reading[s].push_back({options.first_head, reads[s]});
      }
      if (observed == 0) continue;
      member.observe();
      received.push_back({member.received.data(), {1, member.received.size()}});
    }
    return {};
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::kOutOfBudget, "no memory to attend to {} queries", n);
  }
}

// A call that failed has observed nothing.
void MethodCache::Layer::undo() noexcept {
  for (Member& member : members) {
    member.read_all();
    if (!member.earlier) continue;
    member.received = std::move(member.earlier->received);
    member.mask = std::move(member.earlier->mask);
    member.earlier.reset();
  }
}

MethodCache::MethodCache(std::shared_ptr<const Prepared> prepared)
    : prepared_(std::move(prepared)), ledger_(std::make_shared<Ledger>()) {
  layers_.reserve(prepared_->layers.size());
  for (std::size_t i = 0; i < prepared_->layers.size(); ++i) {
    layers_.emplace_back(prepared_->shape.layers[i], prepared_->layers[i], ledger_);
  }
  link_layers();
}

std::int32_t MethodCache::tokens() const noexcept {
  std::int32_t least = layers_.front().next();
  for (const Layer& layer : layers_) least = std::min(least, layer.next());
  return least;
}

// The leader's part of append: everything is checked before anything is touched.
Status MethodCache::extend(int layer, Layer& to, const KvRows& rows, bool scanned) {
  if (rows.positions.empty()) return {};
  const std::int32_t next = to.next(), first = rows.positions.front();
  if (first < next) {
    return fail(ErrorCode::kInvalidArgument,
                "layer {}: position {} of row 0; allowed: {} or more, beyond those appended", layer,
                first, next);
  }
  const Group& group = to.members.front().group;
  const auto last = static_cast<std::int32_t>(first + rows.positions.size() - 1);
  if (group.options().tile > 1 &&
      ((first != next && !group.extent().empty()) || rows.positions.back() != last)) {
    return fail(ErrorCode::kInvalidArgument,
                "layer {}: {} needs consecutive positions: got {} rows at {} to {}, expected {} to {}",
                layer, prepared_->recipe, rows.positions.size(), first, rows.positions.back(),
                group.extent().empty() ? first : next,
                (group.extent().empty() ? first : next) + (last - first));
  }
  if (!scanned || to.bad_rows.load(std::memory_order_relaxed)) {
    KVSPAN_CHECK_OK(check_numbers("keys", layer, rows.keys, to.limit));
    KVSPAN_CHECK_OK(check_numbers("values", layer, rows.values, to.limit));
  }
  // An exception must not leave the leader while the others wait for it at the barrier.
  std::size_t done = 0;
  try {
    for (; done < to.members.size(); ++done) {
      to.members[done].group.list().extend(rows.positions);
    }
  } catch (const std::bad_alloc&) {
    while (done-- > 0) to.members[done].group.list().truncate(rows.positions.front());
    return fail(ErrorCode::kOutOfBudget, "no memory for {} more tokens in layer {} after {}",
                rows.positions.size(), layer, next);
  }
  for (Member& member : to.members) member.group.appended(rows.positions);
  to.tasks = 0;
  for (const Member& member : to.members) to.tasks += member.tasks();
  return {};
}

Status MethodCache::append(int layer, const KvRows& rows, Team& team) {
  KVSPAN_CHECK_BY_ALL(check_layer(prepared_->shape, layer), team);
  Layer& to = layers_[static_cast<std::size_t>(layer)];
  const LayerShape& shape = prepared_->shape.layers[static_cast<std::size_t>(layer)];
  KVSPAN_CHECK_BY_ALL(check_rows(shape, layer, rows), team);
  const auto n = static_cast<std::int32_t>(rows.positions.size());
  const std::size_t elements = rows.positions.size() * static_cast<std::size_t>(shape.kv_heads) *
                               static_cast<std::size_t>(shape.key_dim + shape.value_dim);
  const bool leader_alone = elements <= kLeaderElements;
  const std::int32_t runs = (n + kAppendRows - 1) / kAppendRows;
  if (!leader_alone) {
    for (int i; (i = team.take()) < runs;) {
      const auto begin = static_cast<std::size_t>(i * kAppendRows);
      const std::size_t end = std::min(rows.positions.size(), begin + kAppendRows);
      if (first_bad_row(rows.keys, begin, end, to.limit) != end ||
          first_bad_row(rows.values, begin, end, to.limit) != end) {
        to.bad_rows.store(true, std::memory_order_relaxed);
      }
    }
    team.barrier();
  }
  const auto write = [&](Member& member, std::int32_t head, std::int32_t begin, std::int32_t end) {
    SegmentList& list = member.group.list();
    const std::int32_t first_head = member.group.options().first_head;
    list.write(list.tokens() - n, heads_of(rows.keys, first_head, list.shape().heads),
               heads_of(rows.values, first_head, list.shape().heads), head, begin, end);
  };
  if (team.leader()) {
    to.appended = extend(layer, to, rows, !leader_alone);
    to.bad_rows.store(false, std::memory_order_relaxed);
    if (to.appended && leader_alone) {
      for (Member& member : to.members) {
        for (std::int32_t h = 0; h < member.group.options().heads; ++h) write(member, h, 0, n);
      }
    }
  }
  team.barrier();
  Status appended = copy_of(to.appended);
  if (appended && !leader_alone) {
    for (int i; (i = team.take()) < runs * shape.kv_heads;) {
      std::int32_t head = i % shape.kv_heads;
      auto member = to.members.begin();
      for (; head >= member->group.options().heads; ++member) head -= member->group.options().heads;
      const std::int32_t begin = i / shape.kv_heads * kAppendRows;
      write(*member, head, begin, std::min(n, begin + kAppendRows));
    }
  }
  team.barrier();  // also keeps the outcome in place until everybody has read it
  return appended;
}

Status MethodCache::attend(int layer, const Queries& queries, TensorView<float, 3> out,
                           AttentionScratch& scratch, Team& team) {
  KVSPAN_CHECK_BY_ALL(check_layer(prepared_->shape, layer), team);
  Layer& from = layers_[static_cast<std::size_t>(layer)];
  const LayerShape& shape = prepared_->shape.layers[static_cast<std::size_t>(layer)];
  KVSPAN_CHECK_BY_ALL(check_queries(shape, layer, queries, out), team);
  KVSPAN_CHECK_BY_ALL(
      check_numbers("queries", layer, queries.rows, std::numeric_limits<float>::infinity()), team);
  KVSPAN_CHECK_BY_ALL(check_held(layer, from.next()), team);
  std::int32_t earlier = 0;
  if (team.leader()) {
    earlier = from.queries;
    from.queries = static_cast<std::int32_t>(queries.positions.size());
  }
  Status done = read(from, shape, queries, out, scratch, team);
  if (!done) {
    if (team.leader()) {
      from.queries = earlier;
      from.undo();
    }
    team.barrier();
  }
  return done;
}

Status MethodCache::read(Layer& from, const LayerShape& shape, const Queries& queries,
                         const TensorView<float, 3>& out, AttentionScratch& scratch, Team& team) {
  const auto n = static_cast<std::int32_t>(queries.positions.size());
  const std::int32_t observed = from.wants(n);
  AttendCall call{shape, queries, out, {}};
  if (observed == 0 && from.reads_lists() && shape.sinks.empty()) {
    return from.lists.front().store->attend(call, from.lists, scratch, team);
  }
  if (team.leader()) from.prepared = from.prepare(shape, queries, observed, scratch);
  team.barrier();
  if (!from.prepared) {
    Status failed = copy_of(from.prepared);
    team.barrier();  // keeps it in place until everybody has read it
    return failed;
  }
  // Stores meet one after the other, by their log-sum-exps; then sinks.
  call.lse = from.lse;
  for (const std::vector<StorePart>& parts : from.reading) {
    if (parts.empty()) continue;
    KVSPAN_CHECK_OK(parts.front().store->attend(call, parts, scratch, team));
    call.adds = true;
  }
  if (!shape.sinks.empty()) add_sinks(shape, out, call.lse, team);
  if (observed == 0) {
    team.barrier();  // settling fills the stores that others may still be looking at
    return {};
  }
  return received_attention(shape, from.reading.front(), queries,
                            {call.lse.data, call.lse.shape, call.lse.strides}, n - observed,
                            from.received, scratch, team);
}

// What settling a layer's groups can leave to more threads than there are groups. Returns with no items taken.
void MethodCache::run_tasks(Layer& layer, Team& team) {
  if (team.places() <= static_cast<int>(layer.members.size()) || layer.tasks < 2) return;
  if (team.leader()) {
    for (Member& member : layer.members) member.open_tasks();
  }
  team.barrier();
  with_help(team, [&](int) {
    for (;;) {
      int task = team.take();
      auto member = layer.members.begin();
      while (member != layer.members.end() && task >= member->opened) task -= (member++)->opened;
      if (member == layer.members.end()) return;
      member->run_task(task);
    }
  });
  team.barrier();
  if (team.leader()) layer.tasks = 0;
}

Status MethodCache::settle(int layer, Team& team) {
  KVSPAN_CHECK_BY_ALL(check_layer(prepared_->shape, layer), team);
  Layer& at = layers_[static_cast<std::size_t>(layer)];
  const LayerShape& shape = prepared_->shape.layers[static_cast<std::size_t>(layer)];
  run_tasks(at, team);
  for (int i; (i = team.take()) < static_cast<int>(at.members.size());) {
    Member& member = at.members[static_cast<std::size_t>(i)];
    member.outcome = member.settle(at.queries, first_seen(shape, at.next()));
  }
  team.barrier();
  for (const Member& member : at.members) KVSPAN_CHECK_BY_ALL(copy_of(member.outcome), team);
  return {};
}

void MethodCache::add_bytes(const Layer& of, CacheBytes& bytes, std::vector<const Code*>& codes) {
  for (const Member& member : of.members) {
    member.group.each_store([&](const TokenStore& store) { store.add_bytes(bytes, codes); });
    bytes.positions += member.group.score_bytes();
    if (member.policy) {
      bytes.sketches += member.policy->sketch_bytes();
      member.policy->add_codes(codes);
    }
    if (member.selector) bytes.positions += member.selector->bytes();
  }
}

CacheBytes MethodCache::bytes() const {
  CacheBytes bytes;
  std::vector<const Code*> codes;
  for (const Layer& layer : layers_) add_bytes(layer, bytes, codes);
  finish_bytes(std::move(codes), bytes);
  // Those that the recipe prepared, whether this sequence has used them yet or not.
  bytes.shared = prepared_->shared->bytes(MemoryKind::kShared);
  return bytes;
}

std::vector<std::size_t> MethodCache::layer_bytes() const {
  std::vector<std::size_t> totals;
  std::set<const Code*> counted;
  for (const Layer& layer : layers_) {
    CacheBytes bytes;
    std::vector<const Code*> codes;
    add_bytes(layer, bytes, codes);
    std::erase_if(codes, [&](const Code* code) { return counted.contains(code); });
    counted.insert(codes.begin(), codes.end());
    finish_bytes(std::move(codes), bytes);
    totals.push_back(bytes.total);
  }
  return totals;
}

const Group& MethodCache::group(int layer, std::size_t index) const {
  return layers_[static_cast<std::size_t>(layer)].members[index].group;
}

std::vector<const TokenStore*> MethodCache::last_read(int layer, std::size_t index) const {
  return layers_[static_cast<std::size_t>(layer)].members[index].reads();
}

std::string MethodCache::code_source() const {
  for (const Layer& layer : layers_) {
    for (const Member& member : layer.members) {
      if (!member.policy) continue;
      if (std::string source = member.policy->code_source(member.group); !source.empty()) {
        return source;
      }
    }
  }
  return {};
}

const Policy* MethodCache::policy(int layer, std::size_t index) const {
  return layers_[static_cast<std::size_t>(layer)].members[index].policy.get();
}

}  // namespace kvspan
