// SPDX-License-Identifier: Apache-2.0
// The KvCache that every recipe becomes: groups of heads, a policy and perhaps a selector for each.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "attention/segments/segment_store.h"
#include "attention/token_store.h"
#include "base/byte_stream.h"
#include "base/memory.h"
#include "kvspan/cache.h"
#include "kvspan/saved_cache.h"
#include "method/group.h"
#include "method/layer_tokens.h"
#include "method/prepared.h"

namespace kvspan {

class MethodCache final : public KvCache {
 public:
  explicit MethodCache(std::shared_ptr<const Prepared> prepared);

  const CacheShape& shape() const noexcept override { return prepared_->shape; }
  std::string recipe() const override { return prepared_->recipe; }
  std::int32_t tokens() const noexcept override;
  Status append(int layer, const KvRows& rows, Team& team) override;
  Status attend(int layer, const Queries& queries, TensorView<float, 3> out,
                AttentionScratch& scratch, Team& team) override;
  Status settle(int layer, Team& team) override;
  Status truncate(std::int32_t n) override;
  std::int32_t least_tokens() const noexcept override;
  void clear() override;
  Result<std::unique_ptr<KvCache>> fork() const override;
  CacheBytes bytes() const override;
  // What `total` of bytes() is made of, by layer; a code of several layers counts in the first.
  std::vector<std::size_t> layer_bytes() const;
  Status save(const ByteSink& sink) const override { return save(sink, nullptr); }
  using KvCache::save;
  // The same; `runs`, where given, gets the places of tokens in it (kvspan/saved_cache.h).
  Status save(const ByteSink& sink, std::vector<SavedRun>* runs) const;
  // What save() wrote of a cache with the same recipe, shape and codes.
  static Result<std::unique_ptr<MethodCache>> load(std::shared_ptr<const Prepared> prepared,
                                                   std::span<const std::byte> bytes);
  // What a layer holds, for memory of another kind, and a layer that held nothing made to hold it
  // (method/layer_tokens.h). They fail, naming layer and group, on what only the host can hold; where
  // take fails, the layer is left in some state.
  Result<LayerTokens> give(int layer) const;
  Status take(int layer, const LayerTokens& tokens);

  // For tests and error tracking.
  std::size_t groups(int layer) const {
    return layers_[static_cast<std::size_t>(layer)].members.size();
  }
  const Group& group(int layer, std::size_t index) const;
  // What the last attend read of it; until settle.
  std::vector<const TokenStore*> last_read(int layer, std::size_t index) const;
  // Null where rows stay as they came.
  const Policy* policy(int layer, std::size_t index) const;
  const std::shared_ptr<Ledger>& ledger() const noexcept { return ledger_; }
  // api/code_source.h
  std::string code_source() const;

 private:
  struct Member {
    Group group;
    std::unique_ptr<Policy> policy;      // null: rows stay
    std::unique_ptr<Selector> selector;  // null: all tokens
    std::int32_t observed_queries = 0;
    Status outcome;               // of the last call, for all threads to read
    int opened = 0;               // tasks of the next settle
    std::vector<float> received;  // by the last call's queries
    std::vector<std::uint8_t> mask;  // the list's tokens that `received` is of, where not all
    bool group_received = false;     // it is in the group's scores already
    // Both as they were before the call, until it is known to succeed.
    struct Observed {
      std::vector<float> received;
      std::vector<std::uint8_t> mask;
    };
    std::optional<Observed> earlier;
    // What the current call reads instead of the rows and of the added stores; null: those.
    std::unique_ptr<SegmentStore> chosen_rows;
    std::vector<std::unique_ptr<TokenStore>> chosen;

    Member(const LayerShape& layer, const PreparedGroup& prepared,
           const std::shared_ptr<Ledger>& ledger);
    Member(const Member& other);
    std::int32_t wants(std::int32_t queries) const noexcept;
    void choose(const std::vector<std::uint8_t>& keep);
    void observe();
    void rebuild();
    void read_all() noexcept;
    const SegmentStore& reads_rows() const noexcept { return chosen_rows ? *chosen_rows : group.rows(); }
    // The rows, and then what the method added.
    std::vector<const TokenStore*> reads() const;
    // Those of its policy (method/policies/policy.h).
    int tasks() const noexcept;
    void open_tasks() noexcept;
    void run_task(int task) noexcept;
    // first_needed: tokens before this position are seen no more.
    Status settle(std::int32_t queries, std::int32_t first_needed);
    void forget(std::int32_t first_needed);
    // `received` at the places of all tokens; empty when there is none.
    std::vector<float> received_by_token() const;
    Status save(const StateWriter& to) const;
    Status load(const StateReader& from);
  };
  struct Layer;
  static void run_tasks(Layer& layer, Team& team);
  struct Layer {
    std::vector<Member> members;
    std::vector<StorePart> lists;  // the members'
    // What the current call reads where that is not the lists alone: the first stores of all
    // members, then the second ones, and so on.
    std::vector<std::vector<StorePart>> reading;
    TensorView<float, 2> lse;  // [queries, query_heads], in the scratch of the current call
    std::vector<TensorView<float, 2>> received;
    std::int32_t queries = 0;  // of the last attend
    int tasks = 0;             // of the members, when rows last came: all threads must see the same number
    float limit = 0.0f;        // of numbers in rows
    bool reconstruct = false;
    Status prepared;
    Status appended;
    std::atomic<bool> bad_rows{false};  // found by a member of the team

    Layer(const LayerShape& shape, const PreparedLayer& prepared,
          const std::shared_ptr<Ledger>& ledger);
    Layer(const Layer& other);
    Layer(Layer&& other) noexcept;
    void list_stores();
    // Beyond every position that was ever appended.
    std::int32_t next() const noexcept { return members.front().group.extent().next; }
    bool reads_lists() const noexcept;
    std::int32_t wants(std::int32_t queries) const noexcept;
    Status prepare(const LayerShape& shape, const Queries& queries, std::int32_t observed,
                   AttentionScratch& scratch);
    void undo() noexcept;
  };

  MethodCache(const MethodCache& other);
  // Tells groups that lead others where those are.
  void link_layers();
  // Makes what they hold together one thing again, after a change that replaced stores.
  void share_stores() noexcept;
  static bool is_hosts(const Member& member) noexcept;
  static void add_bytes(const Layer& of, CacheBytes& bytes, std::vector<const Code*>& codes);
  Status extend(int layer, Layer& to, const KvRows& rows, bool scanned);
  // attend, all checked.
  Status read(Layer& from, const LayerShape& shape, const Queries& queries,
              const TensorView<float, 3>& out, AttentionScratch& scratch, Team& team);
  Status load_layers(ByteReader& in, std::uint32_t version);

  std::shared_ptr<const Prepared> prepared_;
  std::shared_ptr<Ledger> ledger_;
  std::vector<Layer> layers_;
};

}  // namespace kvspan
