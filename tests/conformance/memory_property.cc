// SPDX-License-Identifier: Apache-2.0
// Memory that ends at any place: every allocation of every call fails once. What kvspan/cache.h
// promises holds: the call fails with kOutOfBudget and throws nothing, the cache is as it was, or,
// where settle had begun, resumes as if it had not failed; and no memory is leaked.
#include "tests/base/fail_each.h"
#include "tests/conformance/cache_properties.h"

namespace kvspan::conformance {
namespace {

using testing::fail_each;
using testing::take;
using Cache = std::unique_ptr<KvCache>;
using Bytes = std::vector<std::byte>;

// A step of 48 rows after 96: every method codes some, and those that learn or drop do so again.
constexpr std::int32_t kBefore = 96, kStep = 48;

bool failed() {
  return ::testing::Test::HasFailure();
}

Bytes saved(const CacheSource& source, const KvCache& cache) {
  auto bytes = source.caches().save(cache);
  EXPECT_TRUE(bytes) << bytes.error().message;
  return bytes ? std::move(*bytes) : Bytes();
}
Cache fork(const CacheSource& source, const KvCache& cache) {
  auto copy = source.caches().fork(cache);
  EXPECT_TRUE(copy) << copy.error().message;
  return copy ? std::move(*copy) : nullptr;
}

// Calls of a step of one layer.
using Call = Status (LayerStep::*)(KvCache&);

void fail_call(const CacheSource& source, const std::string& what, const KvCache& from, Call call,
               int layer, std::int32_t n, bool all_or_nothing) {
  const std::int32_t first = from.tokens();
  const Bytes before = saved(source, from);
  LayerStep whole(source, layer, first, n);
  const Cache made = fork(source, from);
  ASSERT_TRUE((whole.*call)(*made));
  const Bytes after = saved(source, *made);
  struct Trial {
    Cache cache;
    std::unique_ptr<LayerStep> step;
  };
  fail_each(
      fmt::format("{} of {} rows in layer {}", what, n, layer),
      [&] { return Trial{fork(source, from), std::make_unique<LayerStep>(source, layer, first, n)}; },
      [&](Trial& trial) { return (trial.step.get()->*call)(*trial.cache); },
      [&](Trial& trial, bool done) {
        if (done || all_or_nothing) {
          EXPECT_TRUE(saved(source, *trial.cache) == (done ? after : before));
        }
        EXPECT_TRUE(done || (trial.step.get()->*call)(*trial.cache));
        EXPECT_TRUE(trial.step->out == whole.out);
        EXPECT_TRUE(saved(source, *trial.cache) == after) << "made again, it leaves something else";
      });
}

void fail_steps(const CacheSource& source, KvCache& cache) {
  const int layers = int(source.text().shape().layers.size());
  for (const std::int32_t n : {kStep, 1}) {
    for (int layer = 0; layer < layers && !failed(); ++layer) {
      LayerStep step(source, layer, cache.tokens(), n);
      fail_call(source, "append", cache, &LayerStep::append, layer, n, true);
      ASSERT_TRUE(step.append(cache));
      const auto in_step = [&](const std::string& what, Call call, bool all_or_nothing) {
        if (!failed()) fail_call(source, what, cache, call, layer, n, all_or_nothing);
      };
      in_step("attend", &LayerStep::attend, true);
      ASSERT_TRUE(step.attend(cache));
      in_step("settle", &LayerStep::settle, false);
      ASSERT_TRUE(step.settle(cache));
    }
  }
}

void fail_others(const CacheSource& source, const KvCache& cache) {
  const Bytes before = saved(source, cache);
  const auto same = [&] { return fork(source, cache); };
  const auto nothing = [] { return Cache(); };
  fail_each(
      "save", same,
      [&](Cache& c) {
        Bytes to;
        return take(source.caches().save(*c), to);
      },
      [&](Cache& c, bool) { EXPECT_TRUE(saved(source, *c) == before); });
  fail_each(
      "fork", nothing, [&](Cache& c) { return take(source.caches().fork(cache), c); },
      [&](Cache& c, bool done) { EXPECT_TRUE(saved(source, done ? *c : cache) == before); });
  fail_each(
      "load", nothing, [&](Cache& c) { return take(source.load_cache(before), c); },
      [&](Cache& c, bool done) { EXPECT_TRUE(!done || saved(source, *c) == before); });
  const std::int32_t within = std::max(cache.least_tokens(), kBefore + 5);
  for (const std::int32_t n : {0, within}) {
    const Cache expected = fork(source, cache);
    ASSERT_TRUE(expected->truncate(n));
    const Bytes after = saved(source, *expected);
    fail_each(
        fmt::format("truncate({})", n), same, [&](Cache& c) { return c->truncate(n); },
        [&](Cache& c, bool done) { EXPECT_TRUE(saved(source, *c) == (done ? after : before)); });
  }
}

}  // namespace

void survives_the_end_of_memory(const CacheSource& source) {
  (void)source.new_cache();
  const long long buffers = testing::buffer_bytes();
  {
    const Cache cache = source.new_cache();
    for (std::int32_t at = 0; at < kBefore; at += kStep) {
      for (std::size_t layer = 0; layer < source.text().shape().layers.size(); ++layer) {
        LayerStep step(source, int(layer), at, kStep);
        ASSERT_TRUE(step.append(*cache) && step.attend(*cache) && step.settle(*cache));
      }
    }
    fail_steps(source, *cache);
    if (!failed()) fail_others(source, *cache);
  }
  EXPECT_EQ(testing::buffer_bytes(), buffers) << "something is left behind";
}

}  // namespace kvspan::conformance
