// SPDX-License-Identifier: Apache-2.0
// Caches behind the C interface (kvspan/kvspan.h).
#include "kvspan/kvspan.h"

#include <algorithm>
#include <cstring>

#include "base/copy_status.h"
#include "base/fail.h"
#include "tests/conformance/cache_properties.h"

namespace kvspan::conformance {
namespace {

Status status_of(kvspan_code code) {
  if (code == KVSPAN_OK) return {};
  static constexpr ErrorCode kCodes[] = {
      ErrorCode::kInvalidArgument, ErrorCode::kNotFound,    ErrorCode::kCorruptData,
      ErrorCode::kUnsupported,     ErrorCode::kOutOfBudget, ErrorCode::kIo,
      ErrorCode::kCancelled};
  return Error{kCodes[code - 1], kvspan_last_error()};
}

int take(void* context, const void* bytes, std::size_t size) {
  auto& to = *static_cast<std::vector<std::byte>*>(context);
  const auto* from = static_cast<const std::byte*>(bytes);
  to.insert(to.end(), from, from + size);
  return 0;
}

// A handle as a cache. Its threads are its own: the leader of a team calls, the others wait.
class Handle final : public KvCache {
 public:
  Handle(const CacheFactory& host, kvspan_cache* cache, CacheShape shape)
      : host_(host), cache_(cache), shape_(std::move(shape)) {}
  ~Handle() override { kvspan_free(cache_); }
  Handle(const Handle&) = delete;

  const CacheShape& shape() const noexcept override { return shape_; }
  std::string recipe() const override { return host_.recipe(); }
  std::int32_t tokens() const noexcept override { return kvspan_tokens(cache_); }
  Status append(int layer, const KvRows& rows, Team& team) override {
    return by_leader(team, [&] {
      return kvspan_append(cache_, layer, std::int32_t(rows.positions.size()), KVSPAN_F32,
                           rows.keys.data, rows.values.data, rows.positions.data());
    });
  }
  Status attend(int layer, const Queries& queries, TensorView<float, 3> out, AttentionScratch&,
                Team& team) override {
    return by_leader(team, [&] {
      return kvspan_attend(cache_, layer, std::int32_t(queries.positions.size()), KVSPAN_F32,
                           queries.rows.data, queries.positions.data(), out.data);
    });
  }
  Status settle(int layer, Team& team) override {
    return by_leader(team, [&] { return kvspan_settle(cache_, layer); });
  }
  Status truncate(std::int32_t n) override { return status_of(kvspan_truncate(cache_, n)); }
  std::int32_t least_tokens() const noexcept override { return kvspan_least_tokens(cache_); }
  void clear() override { (void)kvspan_clear(cache_); }
  Result<std::unique_ptr<KvCache>> fork() const override {
    kvspan_cache* copy = nullptr;
    KVSPAN_CHECK_OK(status_of(kvspan_fork(cache_, &copy)));
    return std::unique_ptr<KvCache>(std::make_unique<Handle>(host_, copy, shape_));
  }
  CacheBytes bytes() const override {
    kvspan_bytes held = {};
    held.struct_size = sizeof held;
    EXPECT_EQ(kvspan_get_bytes(cache_, &held), KVSPAN_OK) << kvspan_last_error();
    return {held.full_rank, held.coefficients, held.scales, held.bases,
            held.sketches,  held.positions,    held.shared, held.total};
  }
  Status save(const ByteSink& sink) const override {
    std::vector<std::byte> bytes;
    KVSPAN_CHECK_OK(status_of(kvspan_save(cache_, take, &bytes)));
    return sink(bytes);
  }
  using KvCache::save;

 private:
  template <class Call>
  Status by_leader(Team& team, const Call& call) {
    team.barrier();
    if (team.leader()) outcome_ = status_of(call());
    team.barrier();
    Status outcome = copy_of(outcome_);
    team.barrier();  // keeps it in place until everybody has read it
    return outcome;
  }

  const CacheFactory& host_;
  kvspan_cache* cache_;
  CacheShape shape_;
  Status outcome_;
};

// A factory made from the saved codes of the host's, through structures alone.
class Handles final : public Caches {
 public:
  explicit Handles(CacheFactory made) : Caches(std::move(made)), shape_(host().make()->shape()) {
    std::vector<kvspan_layer> layers;
    for (const LayerShape& from : shape_.layers) {
      kvspan_layer layer = {};
      layer.struct_size = sizeof layer;
      layer.query_heads = from.query_heads;
      layer.kv_heads = from.kv_heads;
      layer.key_dim = from.key_dim;
      layer.value_dim = from.value_dim;
      layer.window = from.window;
      layer.chunk = from.chunk;
      layer.logit_scale = from.logit_scale;
      layer.rope_dims = from.rope.rotated_dims;
      layer.rope_pairs = from.rope.pairs == Rope::Pairs::kHalves ? KVSPAN_ROPE_HALVES
                                                                 : KVSPAN_ROPE_NEIGHBOURS;
      layer.rope_angles = from.rope.angles.data();
      layers.push_back(layer);
    }
    const std::string recipe = host().recipe();
    const std::vector<std::byte> codes = host().save_codes().value();
    kvspan_factory_options options = {};
    options.struct_size = sizeof options;
    options.layers = layers.data();
    options.layer_count = std::int32_t(layers.size());
    options.recipe = recipe.c_str();
    options.codes = codes.data();
    options.codes_size = codes.size();
    EXPECT_EQ(kvspan_factory_create(&options, &factory_), KVSPAN_OK) << kvspan_last_error();
  }
  ~Handles() override { kvspan_factory_free(factory_); }

  std::unique_ptr<KvCache> make(int threads) const override {
    kvspan_cache* cache = nullptr;
    EXPECT_EQ(kvspan_make(factory_, threads, &cache), KVSPAN_OK) << kvspan_last_error();
    return std::make_unique<Handle>(host(), cache, shape_);
  }
  Result<std::unique_ptr<KvCache>> load(std::span<const std::byte> bytes,
                                        int threads) const override {
    kvspan_cache* cache = nullptr;
    KVSPAN_CHECK_OK(status_of(kvspan_load(factory_, threads, bytes.data(), bytes.size(), &cache)));
    return std::unique_ptr<KvCache>(std::make_unique<Handle>(host(), cache, shape_));
  }
  void limit(Traits& traits) const override { traits.takes_views = false; }

 private:
  CacheShape shape_;
  kvspan_factory* factory_ = nullptr;
};

Result<std::unique_ptr<Caches>> handles(CacheFactory host) {
  return std::unique_ptr<Caches>(std::make_unique<Handles>(std::move(host)));
}
constexpr Implementation kHandles{"C interface", handles};

class CHandles : public ::testing::TestWithParam<Case> {};
TEST_P(CHandles, Conform) {
  run_case(kHandles, GetParam());
}
INSTANTIATE_TEST_SUITE_P(Of, CHandles,
                         ::testing::ValuesIn(all_cases(recipes_of_stores(), cache_properties())),
                         case_name);

}  // namespace
}  // namespace kvspan::conformance
