// SPDX-License-Identifier: Apache-2.0
// Sequences of a device as caches of kvspan/cache.h: which calls they refuse, and calls from several
// threads.
#include "kvspan/cuda_home.h"

#include <limits>
#include <thread>

#include "tests/cuda/device_run.h"

namespace kvspan::testing {
namespace device_home_test {

constexpr const char* kRecipe =
    "bands:quantizer=uniform,escape=0,sink=32,recent=48,bits=2.5,grain=64";

struct Home {
  CacheShape shape = [] {
    CacheShape s = synthetic_shape(2, 2, 64);
    for (LayerShape& l : s.layers) l.query_heads = 8;
    return s;
  }();
  SyntheticText text{shape, 700, 31};
  Calibration calibration = text.calibration();
  CacheFactory factory = CacheFactory::create(shape, kRecipe, &calibration).value();
  std::shared_ptr<DeviceHome> home;

  Home() {
    DeviceOptions options;
    options.budget_bytes = std::size_t{64} << 20;
    options.max_sequences = 12;
    options.max_tokens = 1024;
    auto made = DeviceHome::create(factory, options);
    EXPECT_TRUE(made) << (made ? "" : made.error().message);
    if (made) home = *made;
  }
};

TEST(DeviceHomeCaches, WrongCallsAreRefusedAndChangeNothing) {
  KVSPAN_NEEDS_DEVICE();
  Home run;
  ASSERT_NE(run.home, nullptr);
  TeamState state;
  Team team(state, 0, 1);
  const auto scratch = make_attention_scratch();
  std::vector<float> out(16 * 8 * 64);
  const auto out_of = [&](std::size_t n) {
    return TensorView<float, 3>(out.data(), {n, 8, 64});
  };
  for (const std::int32_t held : {0, 200}) {
    SCOPED_TRACE(held);
    const auto cache = run.home->make(), other = run.home->make();
    if (held > 0) {
      testing::run(*cache, run.text, 0, held, 40);
      testing::run(*other, run.text, 0, held, 40);
    }
    const std::vector<std::byte> before = saved(*cache);
    const auto refused = [&](const Status& status, const std::string& part) {
      ASSERT_FALSE(status) << part;
      EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument);
      EXPECT_NE(status.error().message.find(part), std::string::npos) << status.error().message;
      EXPECT_EQ(cache->tokens(), held);
      EXPECT_TRUE(saved(*cache) == before) << part;
    };
    const KvRows rows = run.text.rows(0, held, 4);
    refused(cache->append(2, rows, team), "layer 2");
    refused(cache->append(-1, rows, team), "layer -1");
    refused(cache->append(0, run.text.rows(0, held + 5, 4), team), "allowed");
    std::vector<std::int32_t> gap{held, held + 1, held + 3, held + 4};
    refused(cache->append(0, {rows.keys, rows.values, gap}, team), "of row 2");
    KvRows shaped = rows;
    shaped.keys.shape[1] = 1;
    refused(cache->append(0, shaped, team), "keys are");
    shaped = rows;
    shaped.values.shape[1] = 4;
    refused(cache->append(0, shaped, team), "values are");
    shaped = rows;
    shaped.values.shape[0] = 3;
    refused(cache->append(0, shaped, team), "values are");
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), 65520.0f}) {
      std::vector<float> numbers(rows.keys.data, rows.keys.data + 4 * 2 * 64);
      numbers[300] = bad;
      const TensorView<const float, 3> view(numbers.data(), rows.keys.shape);
      refused(cache->append(0, {view, rows.values, rows.positions}, team), "keys of row 2");
      refused(cache->append(0, {rows.keys, view, rows.positions}, team), "values of row 2");
    }
    const Queries queries = run.text.queries(0, held, 4);
    refused(cache->attend(0, queries, out_of(4), *scratch, team),
            held == 0 ? "holds no tokens" : "of query 0");
    refused(cache->attend(5, queries, out_of(4), *scratch, team), "layer 5");
    refused(cache->attend(0, queries, out_of(3), *scratch, team), "outputs are");
    refused(cache->settle(2, team), "layer 2");
    if (held > 0) {
      refused(cache->attend(0, run.text.queries(0, held - 9, 4), out_of(4), *scratch, team),
              "of query 0");
      Queries wide = run.text.queries(0, held - 4, 4);
      wide.rows.shape[1] = 4;
      refused(cache->attend(0, wide, out_of(4), *scratch, team), "queries are");
      refused(cache->truncate(60), "coded");
    }
    // Nothing to do is no fault.
    EXPECT_TRUE(cache->append(0, run.text.rows(0, held, 0), team));
    EXPECT_TRUE(cache->settle(0, team));
    EXPECT_TRUE(cache->truncate(held + 1));
    EXPECT_TRUE(saved(*cache) == before);
    EXPECT_EQ(testing::run(*cache, run.text, held, 30, 7), testing::run(*other, run.text, held, 30, 7));
    EXPECT_TRUE(cache->truncate(-1));
    EXPECT_EQ(cache->tokens(), 0);
  }
}

// Caches of one home that grow, fork, are cut, saved and cleared by a thread each do what they do alone.
TEST(DeviceHomeCaches, DifferentThreadsMayUseDifferentCaches) {
  KVSPAN_NEEDS_DEVICE();
  Home run;
  ASSERT_NE(run.home, nullptr);
  const auto life = [&](std::int32_t block) {
    std::vector<float> all;
    const auto add = [&](const std::vector<float>& some) {
      all.insert(all.end(), some.begin(), some.end());
    };
    auto cache = run.home->make();
    for (int round = 0; round < 3; ++round) {
      add(testing::run(*cache, run.text, 0, 300, block));
      const std::unique_ptr<KvCache> fork = cache->fork().value();
      EXPECT_TRUE(fork->truncate(fork->least_tokens()));
      const std::int32_t at = fork->tokens();
      add(testing::run(*fork, run.text, at, 350 - at, block));
      add(testing::run(*cache, run.text, 300, 40, block));
      all.push_back(static_cast<float>(saved(*fork).size() + cache->bytes().total));
      cache->clear();
      EXPECT_EQ(cache->tokens(), 0);
      cache = run.home->make();
    }
    return all;
  };
  constexpr std::int32_t kBlocks[] = {30, 41, 60, 75};
  std::vector<std::vector<float>> alone, together(std::size(kBlocks));
  for (const std::int32_t block : kBlocks) alone.push_back(life(block));
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < std::size(kBlocks); ++i) {
    threads.emplace_back([&, i] { together[i] = life(kBlocks[i]); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(together, alone);
  EXPECT_EQ(run.home->device().used_bytes(), 0u);
}

}  // namespace device_home_test
}  // namespace kvspan::testing
