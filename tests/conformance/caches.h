// SPDX-License-Identifier: Apache-2.0
// Implementations of KvCache, and their caches as sequences over a synthetic text.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/thread_pool.h"
#include "kvspan/cache.h"
#include "method/method_cache.h"
#include "tests/conformance/sequence.h"
#include "tests/method/synthetic.h"

namespace kvspan::conformance {

// Caches of one implementation, recipe and shape.
class Caches {
 public:
  // What the host makes of the recipe: what codes and traits are known from.
  explicit Caches(CacheFactory host) : host_(std::move(host)) {}
  virtual ~Caches() = default;
  const CacheFactory& host() const { return host_; }
  // threads: for those that have threads of their own.
  virtual std::unique_ptr<KvCache> make(int threads) const { return (void)threads, host_.make(); }
  virtual Result<std::unique_ptr<KvCache>> load(std::span<const std::byte> bytes,
                                                int threads) const {
    return (void)threads, host_.load(bytes);
  }
  virtual Result<std::vector<std::byte>> save(const KvCache& cache) const { return cache.save(); }
  virtual Result<std::unique_ptr<KvCache>> fork(const KvCache& cache) const { return cache.fork(); }
  // The host's cache inside, if there is one.
  virtual const MethodCache* inside(const KvCache& cache) const {
    return dynamic_cast<const MethodCache*>(&cache);
  }
  // What the implementation leaves open beyond its method.
  virtual void limit(Traits&) const {}

 private:
  CacheFactory host_;
};

// What a recipe's rows in the table of methods, and what they have made, leave open.
Traits traits_of(const CacheFactory& host);

// Makes them; an error where the implementation does not have the recipe.
struct Implementation {
  const char* name;
  Result<std::unique_ptr<Caches>> (*make)(CacheFactory host);
};
// The library's own, in the host's memory.
Result<std::unique_ptr<Caches>> host_caches(CacheFactory host);

// A text in front of a cache of some shape.
struct Scene {
  std::string name;
  std::shared_ptr<const testing::SyntheticText> text;
  std::shared_ptr<const Calibration> calibration;
};

class CacheSource final : public Source {
 public:
  CacheSource(std::shared_ptr<const Caches> caches, Scene scene, int threads = 1);

  std::unique_ptr<Sequence> make() const override;
  Result<std::unique_ptr<Sequence>> load(std::span<const std::byte> bytes) const override;
  std::unique_ptr<Source> with_threads(int threads) const override;
  const Traits& traits() const override { return traits_; }
  std::span<const std::int32_t> positions() const override { return text().positions(); }

  std::unique_ptr<KvCache> new_cache() const { return caches_->make(pool_->size()); }
  Result<std::unique_ptr<KvCache>> load_cache(std::span<const std::byte> bytes) const {
    return caches_->load(bytes, pool_->size());
  }
  const Caches& caches() const { return *caches_; }
  const testing::SyntheticText& text() const { return *scene_.text; }
  ThreadPool& pool() const { return *pool_; }

 private:
  std::shared_ptr<const Caches> caches_;
  Scene scene_;
  Traits traits_;
  std::shared_ptr<ThreadPool> pool_;
};

// One step of one layer, call by call, with `pool`'s threads. Tokens are numbered as in the text.
struct LayerStep {
  const CacheSource& source;
  int layer;
  std::int32_t first, n;
  std::vector<float> out = {};  // [n, query_heads, value_dim]

  LayerStep(const CacheSource& from, int of, std::int32_t begin, std::int32_t count);
  Status append(KvCache& cache);
  Status attend(KvCache& cache);
  Status settle(KvCache& cache);
  const std::unique_ptr<AttentionScratch, void (*)(AttentionScratch*)> scratch =
      make_attention_scratch();
};

class CacheSequence final : public Sequence {
 public:
  CacheSequence(const CacheSource& source, std::unique_ptr<KvCache> cache)
      : source_(source), cache_(std::move(cache)) {}

  std::int32_t tokens() const override { return cache_->tokens(); }
  std::int32_t least_tokens() const override { return cache_->least_tokens(); }
  CacheBytes bytes() const override { return cache_->bytes(); }
  Status step(std::int32_t n, std::vector<float>& out) override;
  Status truncate(std::int32_t n) override { return cache_->truncate(n); }
  void clear() override { cache_->clear(); }
  Result<std::unique_ptr<Sequence>> fork() const override;
  Result<std::vector<std::byte>> save() const override { return source_.caches().save(*cache_); }
  KvCache& cache() { return *cache_; }

 private:
  const CacheSource& source_;
  std::unique_ptr<KvCache> cache_;
};

// Runs a call on all threads of a pool; all find the same. One alone allocates nothing of its own.
template <class Call>
Status by_all(ThreadPool& pool, const Call& call) {
  if (pool.size() == 1) {
    TeamState state;
    Team team(state, 0, 1);
    return call(team);
  }
  Status found;
  pool.run([&](Team& team) {
    Status mine = call(team);
    if (team.leader()) found = std::move(mine);
  });
  return found;
}

}  // namespace kvspan::conformance
