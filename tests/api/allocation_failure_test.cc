// SPDX-License-Identifier: Apache-2.0
// Memory that ends while codes are designed, saved or loaded, or for every thread of a team at once:
// every allocation fails once, the call is told so with kOutOfBudget and throws nothing, and nothing
// is left behind. Calls of caches by one thread: tests/conformance/memory_property.cc.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "kvspan/cache.h"
#include "tests/base/fail_each.h"
#include "tests/method/recipes.h"
#include "tests/method/synthetic.h"

namespace kvspan {
namespace allocation_failure_test {

using testing::fail_each;
using testing::Failing;
using testing::FailingAllocation;
using testing::next_failure;
using testing::saved;
using testing::SyntheticText;
using testing::take;

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

using Cache = std::unique_ptr<KvCache>;
Cache fork(const KvCache& cache) {
  return std::move(cache.fork()).value();
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
