// SPDX-License-Identifier: Apache-2.0
// Memory that ends at any place: every allocation of every call fails once, for every method,
// selector and pair of them that the methods' table has. What kvspan/cache.h promises holds: the
// call fails with kOutOfBudget and throws nothing, the cache is as it was, or, where settle had
// begun, holds every token it should hold once; made again, the call gives the same bits as if it
// had never failed; and nothing is left behind.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "kvspan/cache.h"
#include "method/method_cache.h"
#include "tests/base/allocation_watch.h"
#include "tests/base/sweep.h"
#include "tests/method/held_positions.h"
#include "tests/method/recipes.h"
#include "tests/method/synthetic.h"

namespace kvspan {
namespace allocation_failure_test {

using testing::Failing;
using testing::FailingAllocation;
using testing::saved;
using testing::SyntheticText;

// A step of 48 rows after 96: every method codes some, and those that learn or drop do so again.
constexpr std::int32_t kBefore = 96, kStep = 48;

// The second layer forgets what its window has passed.
const SyntheticText& text() {
  static const SyntheticText text = [] {
    CacheShape shape = testing::synthetic_shape(2, 2, 16);
    shape.layers[1].window = 40;
    return SyntheticText(shape, kBefore + kStep + 1, 11);
  }();
  return text;
}

const Calibration& calibration() {
  static const Calibration calibration = text().calibration();
  return calibration;
}

// The failing allocation after the nth: the next; later, where calls do the same again and again, a
// quarter further on, with sanitizers half.
std::size_t next_failure(std::size_t nth) {
  if (testing::kSanitized) return nth + 1 + nth / 2;
  return nth + 1 + (nth < 12 ? 0 : nth / 4);
}

// Makes a call on what make() gives, again and again, until no allocation is left that could fail.
// after(state, whether the call succeeded) sees what is left of each.
template <class Make, class Call, class After>
void fail_each(const std::string& what, const Make& make, const Call& call, const After& after) {
  for (const Failing failing : {Failing::kOnce, Failing::kFromThen}) {
    bool more = true;
    for (std::size_t nth = 0; more; nth = next_failure(nth)) {
      SCOPED_TRACE(what + ", allocation " + std::to_string(nth) +
                   (failing == Failing::kOnce ? "" : " and all after it"));
      auto state = make();
      Status status;
      try {
        const FailingAllocation fails(nth, failing);
        status = call(state);
        more = fails.reached();
      } catch (const std::bad_alloc&) {
        ADD_FAILURE() << "std::bad_alloc left the call";
      }
      EXPECT_TRUE(more || status) << "failed without a failure";
      EXPECT_TRUE(status || status.error().code == ErrorCode::kOutOfBudget);
      after(state, status.has_value());
      if (::testing::Test::HasFailure()) return;
    }
  }
}

using Held = std::vector<std::vector<std::int32_t>>;  // positions of each group
Held held(const KvCache& cache, int layer) {
  const auto& all = static_cast<const MethodCache&>(cache);
  Held groups;
  for (std::size_t g = 0; g < all.groups(layer); ++g) {
    groups.push_back(testing::held_positions(all.group(layer, g)));
  }
  return groups;
}

// One step of one layer, call by call.
struct Step {
  int layer = 0;
  std::int32_t first = 0, n = 0;
  TeamState state;
  std::unique_ptr<AttentionScratch, void (*)(AttentionScratch*)> scratch = make_attention_scratch();
  std::vector<float> out = {};

  Step(int of, std::int32_t begin, std::int32_t count)
      : layer(of), first(begin), n(count), out(std::size_t(count) * 4 * 16) {}
  Status append(KvCache& cache) {
    Team team(state, 0, 1);
    return cache.append(layer, text().rows(std::size_t(layer), first, n), team);
  }
  Status attend(KvCache& cache) {
    Team team(state, 0, 1);
    return cache.attend(layer, text().queries(std::size_t(layer), first, n),
                        {out.data(), {std::size_t(n), 4, 16}}, *scratch, team);
  }
  Status settle(KvCache& cache) {
    Team team(state, 0, 1);
    return cache.settle(layer, team);
  }
};

using Cache = std::unique_ptr<KvCache>;
Cache fork(const KvCache& cache) {
  return std::move(cache.fork()).value();
}

// The outcome of a call, its value left where the caller wants it.
template <class T, class To>
Status take(Result<T> result, To& to) {
  if (!result) return std::move(result).error();
  to = std::move(result).value();
  return {};
}
template <class T>
Status status_of(Result<T> result) {
  T value{};
  return take(std::move(result), value);
}

class AllocationFailure : public ::testing::TestWithParam<testing::SuiteRecipe> {
 protected:
  static CacheFactory factory() {
    return CacheFactory::create(text().shape(), GetParam().text, &calibration()).value();
  }
};

// What is held is no more than before a step settled, no less than after, and nothing twice.
void expect_between(const KvCache& cache, int layer, const Held& before, const Held& after) {
  const Held now = held(cache, layer);
  for (std::size_t g = 0; g < now.size(); ++g) {
    const auto& at = now[g];
    EXPECT_TRUE(std::adjacent_find(at.begin(), at.end()) == at.end());
    EXPECT_TRUE(std::includes(before[g].begin(), before[g].end(), at.begin(), at.end()));
    EXPECT_TRUE(std::includes(at.begin(), at.end(), after[g].begin(), after[g].end()));
  }
}

void fail_step(const KvCache& cache, int layer, std::int32_t n) {
  const std::int32_t first = cache.tokens();
  const std::string at = fmt::format(" of {} rows in layer {}", n, layer);
  // What a call is made on: a cache, and what a step needs beside it.
  struct Trial {
    Cache cache;
    std::unique_ptr<Step> step;
  };
  const auto trial = [&](const KvCache& from) {
    return [&] { return Trial{fork(from), std::make_unique<Step>(layer, first, n)}; };
  };
  Step whole(layer, first, n);
  const std::vector<std::byte> before = saved(cache);
  const Cache appended = fork(cache);
  ASSERT_TRUE(whole.append(*appended));
  const std::vector<std::byte> with_rows = saved(*appended);
  fail_each(
      "append" + at, trial(cache), [](Trial& t) { return t.step->append(*t.cache); },
      [&](Trial& t, bool done) {
        EXPECT_TRUE(saved(*t.cache) == (done ? with_rows : before));
        EXPECT_TRUE(done || t.step->append(*t.cache));
        EXPECT_TRUE(saved(*t.cache) == with_rows);
      });
  const Cache attended = fork(*appended);
  ASSERT_TRUE(whole.attend(*attended));
  const std::vector<std::byte> with_attention = saved(*attended);
  fail_each(
      "attend" + at, trial(*appended), [](Trial& t) { return t.step->attend(*t.cache); },
      [&](Trial& t, bool done) {
        EXPECT_TRUE(saved(*t.cache) == (done ? with_attention : with_rows));
        EXPECT_TRUE(done || t.step->attend(*t.cache));
        EXPECT_TRUE(t.step->out == whole.out);
        EXPECT_TRUE(saved(*t.cache) == with_attention);
      });
  const Cache settled = fork(*attended);
  ASSERT_TRUE(whole.settle(*settled));
  const std::vector<std::byte> after = saved(*settled);
  const Held most = held(*attended, layer), least = held(*settled, layer);
  fail_each(
      "settle" + at, trial(*attended), [](Trial& t) { return t.step->settle(*t.cache); },
      [&](Trial& t, bool done) {
        expect_between(*t.cache, layer, most, least);
        EXPECT_TRUE(done || t.step->settle(*t.cache));
        EXPECT_TRUE(saved(*t.cache) == after);
      });
}

TEST_P(AllocationFailure, OfAStepLosesNothing) {
  const long long buffers = testing::buffer_bytes();
  {
    const CacheFactory made = factory();
    const Cache cache = made.make();
    testing::run(*cache, text(), 0, kBefore, kStep);
    for (const std::int32_t n : {kStep, 1}) {
      for (int layer = 0; layer < 2 && !HasFailure(); ++layer) {
        fail_step(*cache, layer, n);
        Step step(layer, cache->tokens(), n);
        ASSERT_TRUE(step.append(*cache) && step.attend(*cache) && step.settle(*cache));
      }
    }
  }
  EXPECT_EQ(testing::buffer_bytes(), buffers);
}

TEST_P(AllocationFailure, OfOtherCallsLeavesTheCacheAsItWas) {
  const long long buffers = testing::buffer_bytes();
  {
    const CacheFactory made = factory();
    const Cache cache = made.make();
    testing::run(*cache, text(), 0, kBefore + kStep, kStep);
    const std::vector<std::byte> before = saved(*cache);
    const auto same = [&] { return fork(*cache); };
    fail_each(
        "save", same, [](Cache& c) { return status_of(c->save()); },
        [&](Cache& c, bool) { EXPECT_TRUE(saved(*c) == before); });
    fail_each(
        "fork", [&] { return Cache(); }, [&](Cache& c) { return take(cache->fork(), c); },
        [&](Cache& c, bool done) { EXPECT_TRUE(saved(done ? *c : *cache) == before); });
    fail_each(
        "load", [&] { return Cache(); }, [&](Cache& c) { return take(made.load(before), c); },
        [&](Cache& c, bool done) { EXPECT_TRUE(!done || saved(*c) == before); });
    for (const std::int32_t n : {0, std::max(cache->least_tokens(), kBefore + 5)}) {
      const Cache expected = fork(*cache);
      ASSERT_TRUE(expected->truncate(n));
      const std::vector<std::byte> after = saved(*expected);
      fail_each(
          fmt::format("truncate({})", n), same, [&](Cache& c) { return c->truncate(n); },
          [&](Cache& c, bool done) { EXPECT_TRUE(saved(*c) == (done ? after : before)); });
    }
  }
  EXPECT_EQ(testing::buffer_bytes(), buffers);
}

// Beside the codes that a factory designs.
TEST_P(AllocationFailure, OfAFactoryIsToldAndLeavesNothing) {
  using Factory = std::optional<CacheFactory>;
  (void)text(), (void)calibration();
  const long long buffers = testing::buffer_bytes();
  {
    const CacheFactory whole = factory();
    const std::vector<std::byte> codes = whole.save_codes().value();
    const auto nothing = [] { return Factory(); };
    const auto equal = [&](Factory& made, bool done) {
      EXPECT_TRUE(!done || made->save_codes().value() == codes);
    };
    fail_each(
        "create", nothing,
        [&](Factory& made) {
          return take(CacheFactory::create(text().shape(), GetParam().text, &calibration()), made);
        },
        equal);
    fail_each(
        "load_codes", nothing,
        [&](Factory& made) {
          return take(CacheFactory::load_codes(text().shape(), GetParam().text, codes), made);
        },
        equal);
    fail_each(
        "save_codes", [&] { return Factory(whole); },
        [](Factory& made) { return status_of(made->save_codes()); }, equal);
  }
  EXPECT_EQ(testing::buffer_bytes(), buffers);
}

INSTANTIATE_TEST_SUITE_P(Recipes, AllocationFailure, ::testing::ValuesIn(testing::suite_recipes()),
                         testing::recipe_name);

// A call by two threads, each of which runs out of memory: both are told the same, nobody waits for
// the other, and made again the call gives the same bits.
using TeamCall = std::function<Status(KvCache&, AttentionScratch&, Team&)>;
void fail_each_by_two(const std::string& what, ThreadPool& pool, const KvCache& from,
                      const std::vector<std::byte>& after, const TeamCall& call) {
  bool more = true;
  for (std::size_t nth = 0; more; nth = next_failure(nth)) {
    SCOPED_TRACE(what + ", allocation " + std::to_string(nth) + " of each thread and all after it");
    const Cache cache = fork(from);
    const auto scratch = make_attention_scratch();
    Status outcomes[2];
    bool reached[2] = {};
    const auto job = [&](Team& team) {
      const FailingAllocation fails(nth, Failing::kFromThen);
      const auto member = static_cast<std::size_t>(team.index());
      outcomes[member] = call(*cache, *scratch, team);
      reached[member] = fails.reached();
    };
    pool.run(job);
    more = reached[0] || reached[1];
    EXPECT_EQ(outcomes[0].has_value(), outcomes[1].has_value());
    if (!outcomes[0]) {
      EXPECT_EQ(outcomes[0].error().code, ErrorCode::kOutOfBudget);
      pool.run([&](Team& team) { EXPECT_TRUE(call(*cache, *scratch, team)); });
    }
    EXPECT_TRUE(saved(*cache) == after);
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(AllocationFailureOfTeams, IsToldToEveryThread) {
  ThreadPool pool(2);
  for (const MethodDeclaration& method : all_methods()) {
    if (method.make == nullptr) continue;
    const std::string recipe = testing::short_recipe(method.name);
    const Cache cache =
        CacheFactory::create(text().shape(), recipe, &calibration()).value().make();
    testing::run(*cache, text(), 0, kBefore, kStep);
    std::vector<float> out(std::size_t(kStep) * 4 * 16);
    const auto scratch = make_attention_scratch();
    const TeamCall calls[] = {
        [&](KvCache& c, AttentionScratch&, Team& team) {
          return c.append(0, text().rows(0, kBefore, kStep), team);
        },
        [&](KvCache& c, AttentionScratch& work, Team& team) {
          return c.attend(0, text().queries(0, kBefore, kStep),
                          {out.data(), {std::size_t(kStep), 4, 16}}, work, team);
        },
        [&](KvCache& c, AttentionScratch&, Team& team) { return c.settle(0, team); },
    };
    for (const auto& call : calls) {
      const Cache after = fork(*cache);
      pool.run([&](Team& team) { EXPECT_TRUE(call(*after, *scratch, team)); });
      fail_each_by_two(recipe, pool, *cache, saved(*after), call);
      pool.run([&](Team& team) { EXPECT_TRUE(call(*cache, *scratch, team)); });
    }
  }
}

}  // namespace allocation_failure_test
}  // namespace kvspan
