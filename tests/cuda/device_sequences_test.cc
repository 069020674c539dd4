// SPDX-License-Identifier: Apache-2.0
// Sequences that come, go, fork and are cut; numbers of other types; budgets.
#include <cuda_bf16.h>

#include "tests/cuda/device_run.h"

namespace kvspan::testing {
namespace {

constexpr const char* kRecipe =
    "bands:quantizer=uniform,escape=0,sink=32,recent=48,bits=2.5,grain=64";

struct Device {
  CacheShape shape = [] {
    CacheShape s = synthetic_shape(2, 2, 64);
    for (LayerShape& l : s.layers) l.query_heads = 8;
    return s;
  }();
  SyntheticText text{shape, 700, 31}, other{shape, 700, 32};
  Calibration calibration = text.calibration();
  std::unique_ptr<DeviceCache> cache;

  explicit Device(std::size_t budget = std::size_t{64} << 20, std::int32_t max_tokens = 1024) {
    DeviceOptions options;
    options.budget_bytes = budget;
    options.max_sequences = 4;
    options.max_tokens = max_tokens;
    cache = made_cache(shape, kRecipe, calibration, options);
  }
  // The answers of both layers.
  std::vector<float> feed(std::int32_t s, const SyntheticText& from, std::int32_t first,
                          std::int32_t n) {
    return step_layers(*cache, s, from, first, n);
  }
};

TEST(DeviceSequences, AForkGoesOnAsItsSourceWould) {
  KVSPAN_NEEDS_DEVICE();
  Device run;
  const std::int32_t a = run.cache->add().value(), b = run.cache->add().value();
  run.feed(a, run.text, 0, 300);
  run.feed(b, run.text, 0, 300);
  const std::size_t before = run.cache->used_bytes();
  const std::int32_t c = run.cache->fork(a, nullptr).value();
  EXPECT_EQ(run.cache->used_bytes(), before);  // nothing was copied
  EXPECT_EQ(run.cache->tokens(c).value(), 300);
  // The source goes another way first, into pages that both had.
  const std::vector<float> other = run.feed(a, run.other, 300, 90);
  const std::vector<float> forked = run.feed(c, run.text, 300, 90);
  const std::vector<float> apart = run.feed(b, run.text, 300, 90);
  EXPECT_EQ(forked, apart);
  EXPECT_NE(other, apart);
  EXPECT_EQ(run.feed(c, run.text, 390, 3), run.feed(b, run.text, 390, 3));
}

TEST(DeviceSequences, TruncatedRowsAreForgotten) {
  KVSPAN_NEEDS_DEVICE();
  Device run;
  const std::int32_t a = run.cache->add().value(), b = run.cache->add().value();
  run.feed(a, run.text, 0, 200);
  run.feed(b, run.text, 0, 200);
  // 152 of 200 are settled by 48 recent ones: 144 in tiles of 16.
  ASSERT_FALSE(run.cache->truncate(a, 100));
  run.feed(a, run.other, 200, 7);
  ASSERT_TRUE(run.cache->truncate(a, 200));
  EXPECT_EQ(run.cache->tokens(a).value(), 200);
  EXPECT_EQ(run.feed(a, run.text, 200, 40), run.feed(b, run.text, 200, 40));
  ASSERT_TRUE(run.cache->truncate(a, 0));
  const auto bytes = run.cache->bytes(a);
  ASSERT_TRUE(bytes);
  EXPECT_EQ(bytes->total, 0u);
  const std::int32_t c = run.cache->add().value();
  EXPECT_EQ(run.feed(a, run.other, 0, 250), run.feed(c, run.other, 0, 250));
}

TEST(DeviceSequences, PagesComeBackWithTheirSequences) {
  KVSPAN_NEEDS_DEVICE();
  Device run;
  for (int round = 0; round < 3; ++round) {
    const std::int32_t a = run.cache->add().value();
    run.feed(a, run.text, 0, 600);
    const CacheBytes bytes = run.cache->bytes(a).value();
    EXPECT_EQ(run.cache->used_bytes(), bytes.total);
    // Rows: the sink's page and those of the last 48 to 63 tokens.
    EXPECT_LE(bytes.full_rank, std::size_t{3} * 64 * 2 * 2 * 128 * 2);
    ASSERT_TRUE(run.cache->remove(a));
    EXPECT_EQ(run.cache->used_bytes(), 0u);
  }
  EXPECT_FALSE(run.cache->tokens(0));
}

TEST(DeviceSequences, ASpentBudgetIsAnErrorAndLeavesTheRest) {
  KVSPAN_NEEDS_DEVICE();
  Device run(std::size_t{512} << 10);
  const std::int32_t a = run.cache->add().value();
  run.feed(a, run.text, 0, 100);
  const std::int32_t b = run.cache->add().value();
  const LayerShape& l = run.shape.layers[0];
  const DeviceArray<float> rows(std::size_t(600 * l.kv_heads * l.key_dim));
  const DeviceStep steps[] = {{b, 600}};
  const Status status = run.cache->append(0, steps, {rows.data(), DeviceNumber::kF32},
                                          {rows.data(), DeviceNumber::kF32}, nullptr);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kOutOfBudget);
  EXPECT_EQ(run.cache->tokens(b).value(), 0);
  ASSERT_TRUE(run.cache->remove(b));
  const std::vector<float> out = run.feed(a, run.text, 100, 2);
  EXPECT_TRUE(std::isfinite(out[0]));
}

TEST(DeviceSequences, WrongCallsAreAnswered) {
  KVSPAN_NEEDS_DEVICE();
  Device run(std::size_t{16} << 20, 128);
  const std::int32_t a = run.cache->add().value();
  const DeviceArray<float> rows(std::size_t{1} << 20);
  const DeviceRows any{rows.data(), DeviceNumber::kF32};
  const auto code_of = [](const Status& status) {
    return status ? std::optional<ErrorCode>() : status.error().code;
  };
  const DeviceStep none[] = {{3, 1}}, twice[] = {{a, 1}, {a, 1}}, empty[] = {{a, 0}},
                   early[] = {{a, 2}}, many[] = {{a, 129}};
  EXPECT_EQ(code_of(run.cache->append(0, none, any, any, nullptr)), ErrorCode::kNotFound);
  EXPECT_EQ(code_of(run.cache->append(0, twice, any, any, nullptr)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of(run.cache->append(0, empty, any, any, nullptr)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of(run.cache->append(2, early, any, any, nullptr)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of(run.cache->append(0, many, any, any, nullptr)), ErrorCode::kOutOfBudget);
  EXPECT_EQ(code_of(run.cache->attend(0, early, any, {rows.data(), DeviceNumber::kF32}, nullptr)),
            ErrorCode::kInvalidArgument);
}

// Rows that all three types hold exactly give the same answer.
template <class T, class Convert>
std::vector<T> converted(const std::vector<float>& from, Convert convert) {
  std::vector<T> to;
  for (const float x : from) to.push_back(convert(x));
  return to;
}

TEST(DeviceSequences, RowsOfAllTypes) {
  KVSPAN_NEEDS_DEVICE();
  Device run;
  const LayerShape& l = run.shape.layers[0];
  Random random(5);
  const std::size_t n = 150;
  std::vector<float> keys(n * std::size_t(l.kv_heads * l.key_dim)), values(keys.size()),
      queries(std::size_t(l.query_heads * l.key_dim));
  for (auto* rows : {&keys, &values, &queries}) {
    for (float& x : *rows) x = float(int(random.below(33)) - 16) / 16.0f;
  }
  const auto answer = [&]<class T>(DeviceNumber number, auto convert, T) {
    const std::int32_t s = run.cache->add().value();
    const DeviceArray<T> k{std::span<const T>(converted<T>(keys, convert))},
        v{std::span<const T>(converted<T>(values, convert))},
        q{std::span<const T>(converted<T>(queries, convert))};
    const DeviceArray<float> out(std::size_t(l.query_heads * l.value_dim));
    const DeviceStep all[] = {{s, std::int32_t(n)}}, last[] = {{s, 1}};
    EXPECT_TRUE(run.cache->append(0, all, {k.data(), number}, {v.data(), number}, nullptr));
    EXPECT_TRUE(run.cache->settle(0, all, nullptr));
    EXPECT_TRUE(
        run.cache->attend(0, last, {q.data(), number}, {out.data(), DeviceNumber::kF32}, nullptr));
    return out.read();
  };
  const auto f32 = answer(
      DeviceNumber::kF32, [](float x) { return x; }, float{});
  const auto f16 = answer(
      DeviceNumber::kF16, [](float x) { return __float2half(x); }, __half{});
  const auto bf16 = answer(
      DeviceNumber::kBF16, [](float x) { return __float2bfloat16(x); }, __nv_bfloat16{});
  EXPECT_EQ(f32, f16);
  EXPECT_EQ(f32, bf16);
}

}  // namespace
}  // namespace kvspan::testing
