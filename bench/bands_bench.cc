// SPDX-License-Identifier: Apache-2.0
// Decoding over 8192 tokens coded by bands at 2 bits, beside full-rank f16 of the same shape: one
// query, one thread, layers in turn so that the caches do not hold them. Also blocks of 16 to 512 queries
// (prefill). Names: anchor block (-1: keys before RoPE, which are rebuilt), queries, quantizer (0
// uniform, 1 trellis).
// few_tokens: hardly more than what codes themselves cost a step, over 16 tokens of 30 layers, each
// with a code of its own, in turn. Names: queries, components (284 are not whole eights).
// code_a_tile: coding 16 tokens, of these layers in turn. Name: quantizer.
// --cpu-level=NAME as first argument: kernels of a lower level.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <string_view>
#include <vector>

#include "attention/attend.h"
#include "attention/bands/bands_tokens.h"
#include "base/cpu_level.h"
#include "base/random.h"

namespace kvspan {
namespace {

constexpr std::int32_t kTokens = 8192, kLayers = 8, kHeads = 3, kQueryHeads = 9, kDim = 64;

LayerShape layer_shape() {
  LayerShape layer;
  layer.query_heads = kQueryHeads;
  layer.kv_heads = kHeads;
  layer.key_dim = layer.value_dim = kDim;
  layer.logit_scale = 0.125f;
  layer.rope.rotated_dims = kDim;
  for (int i = 0; i < kDim / 2; ++i) layer.rope.angles.push_back(std::pow(1e4, -2.0 * i / kDim));
  return layer;
}

// 384 components of which 288 carry bits, 2 bits on average, as on SmolLM2, and a metric with a
// block for each head of keys. The transform's numbers do not matter to the time.
std::shared_ptr<const BandsCode> code_of(const LayerShape& layer, std::int32_t anchor,
                                         BandsQuantizer quantizer, std::size_t stored = 288) {
  const std::size_t d = 2 * kHeads * kDim;
  std::vector<float> identity(d * d), mean(d / 2), ones(d, 1.0f), blocks(kHeads * kDim * kDim);
  std::vector<std::uint8_t> bits(d);
  for (std::size_t i = 0; i < d; ++i) {
    identity[i * d + i] = 1.0f;
    bits[i] = std::uint8_t(i < 8        ? 6
                           : i < 24     ? 5
                           : i < 56     ? 4
                           : i < 120    ? 3
                           : i < 200    ? 2
                           : i < stored ? 1
                                        : 0);
  }
  for (std::size_t i = 0; i < kHeads * kDim; ++i) blocks[i * kDim + i % kDim] = 1.0f;
  BandsParts parts;
  parts.heads = kHeads;
  parts.key_dim = parts.value_dim = kDim;
  parts.anchor_block = std::max(anchor, 0);
  parts.before_rope = anchor < 0;
  parts.rope = layer.rope;
  parts.key_mean = parts.value_mean = mean;
  parts.synthesis = {identity.data(), {d, d}};
  parts.weights = ones;
  parts.key_blocks = blocks;
  parts.bits = bits;
  parts.steps = parts.sigma = ones;
  parts.quantizer = quantizer;
  return BandsCode::create(parts, nullptr).value();
}

struct Call {
  explicit Call(std::size_t count)
      : n(count),
        rows(n * kQueryHeads * kDim, 0.1f),
        out(n * kQueryHeads * kDim),
        lse(n * kQueryHeads),
        positions(n) {
    for (std::size_t i = 0; i < n; ++i) positions[i] = kTokens + std::int32_t(i);
  }
  Queries queries() const { return {{rows.data(), {n, kQueryHeads, kDim}}, positions}; }

  std::size_t n;
  std::vector<float> rows, out, lse;
  std::vector<std::int32_t> positions;
};

void attend_in_turn(benchmark::State& state, const LayerShape& layer,
                    const std::vector<BandsStore>& stores, std::size_t queries) {
  Call call(queries);
  AttentionScratch scratch;
  TeamState team_state;
  Team team(team_state, 0, 1);
  std::vector<BandsTokens> tokens;
  for (const BandsStore& store : stores) {
    tokens.emplace_back(BandsCodes{store.shared_code(), store.shared_code()}, nullptr);
    tokens.back().keys() = store;
  }
  std::size_t at = 0;
  for (auto _ : state) {
    const StorePart part{0, &tokens[at++ % tokens.size()]};
    const Queries asking = call.queries();
    const AttendCall asked{layer, asking, {call.out.data(), {call.n, kQueryHeads, kDim}},
                           {call.lse.data(), {call.n, kQueryHeads}}};
    benchmark::DoNotOptimize(part.store->attend(asked, std::span(&part, 1), scratch, team).has_value());
  }
}

void bands(benchmark::State& state) {
  const LayerShape layer = layer_shape();
  const auto code = code_of(layer, static_cast<std::int32_t>(state.range(0)),
                            static_cast<BandsQuantizer>(state.range(2)));
  Random random(1);
  std::vector<BandsStore> stores;
  std::vector<std::int8_t> codes(16 * std::size_t(code->places())), gains(16);
  for (std::int32_t l = 0; l < kLayers; ++l) {
    BandsStore& store = stores.emplace_back(code, nullptr);
    for (std::int32_t t = 0; t < kTokens; t += 16) {
      for (auto& c : codes) c = std::int8_t(int(random.below(2)) - 1);
      store.append(t, codes.data(), gains.data(), 0);
    }
  }
  attend_in_turn(state, layer, stores, static_cast<std::size_t>(state.range(1)));
  state.counters["bytes_token"] =
      double(stores[0].payload_bytes() + stores[0].gain_bytes()) / kTokens;
}
BENCHMARK(bands)
    ->ArgsProduct({{64, 128, 256}, {1}, {0, 1}})
    ->Args({-1, 1, 0})
    ->ArgsProduct({{64}, {16, 64, 512}, {0, 1}})
    ->Unit(benchmark::kMicrosecond);

void few_tokens(benchmark::State& state) {
  const LayerShape layer = layer_shape();
  std::vector<BandsStore> stores;
  for (int l = 0; l < 30; ++l) {
    const auto code = code_of(layer, 64, BandsQuantizer::kTrellis, std::size_t(state.range(1)));
    const std::vector<std::int8_t> codes(16 * std::size_t(code->places()), 1), gains(16);
    stores.emplace_back(code, nullptr).append(0, codes.data(), gains.data(), 0);
  }
  attend_in_turn(state, layer, stores, static_cast<std::size_t>(state.range(0)));
}
BENCHMARK(few_tokens)->ArgsProduct({{1, 4}, {288, 284}})->Unit(benchmark::kMicrosecond);

void full_f16(benchmark::State& state) {
  const LayerShape layer = layer_shape();
  std::vector<SegmentList> lists;
  std::vector<float> rows(kTokens * kHeads * kDim, 0.1f);
  std::vector<std::int32_t> positions(kTokens);
  for (std::int32_t i = 0; i < kTokens; ++i) positions[std::size_t(i)] = i;
  for (std::int32_t l = 0; l < kLayers; ++l) {
    SegmentList& list = lists.emplace_back(GroupShape{kHeads, kDim, kDim, Element::kF16}, nullptr);
    list.extend(positions);
    for (std::int32_t h = 0; h < kHeads; ++h) {
      const TensorView<const float, 3> view(rows.data(), {kTokens, kHeads, kDim});
      list.write(0, view, view, h, 0, kTokens);
    }
  }
  Call call(static_cast<std::size_t>(state.range(0)));
  AttentionScratch scratch;
  TeamState team_state;
  Team team(team_state, 0, 1);
  std::size_t at = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(attend_segments(layer, lists[at++ % lists.size()], call.queries(),
                                             {call.out.data(), {call.n, kQueryHeads, kDim}}, {},
                                             scratch, team)
                                 .has_value());
  }
}
BENCHMARK(full_f16)->Arg(1)->Arg(16)->Arg(64)->Arg(512)->Unit(benchmark::kMicrosecond);

void code_a_tile(benchmark::State& state) {
  const LayerShape layer = layer_shape();
  std::vector<std::shared_ptr<const BandsCode>> codes_of_layers;
  for (int l = 0; l < 30; ++l) {
    codes_of_layers.push_back(code_of(layer, 64, static_cast<BandsQuantizer>(state.range(0))));
  }
  std::vector<float> rows(kHeads * kDim, 0.3f), z(16 * 2 * kHeads * kDim), work(16 * 288);
  std::vector<std::int8_t> codes(16 * 288), values(16 * 288), gains(16);
  std::vector<double> squares(16);
  std::size_t at = 0;
  for (auto _ : state) {
    const BandsCode& code = *codes_of_layers[at++ % codes_of_layers.size()];
    for (std::size_t t = 0; t < 16; ++t) {
      code.gather(rows.data(), rows.data(), 1234, z.data() + t * 2 * kHeads * kDim);
    }
    std::fill(work.begin(), work.end(), 0.0f);
    code.analyse(16, z.data(), work.data(), squares.data());
    code.quantize(16, work.data(), codes.data(), gains.data(), values.data());
    benchmark::DoNotOptimize(codes.data());
  }
}
BENCHMARK(code_a_tile)->Arg(0)->Arg(1)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace kvspan

int main(int argc, char** argv) {
  constexpr std::string_view kFlag = "--cpu-level=";
  if (argc > 1 && std::string_view(argv[1]).starts_with(kFlag)) {
    const auto level = kvspan::parse_cpu_level(std::string_view(argv[1]).substr(kFlag.size()));
    const kvspan::Status forced = level ? kvspan::force_cpu_level(*level) : kvspan::Status(level.error());
    if (!forced) {
      std::fprintf(stderr, "%s\n", forced.error().message.c_str());
      return 2;
    }
    argv[1] = argv[0];
    ++argv, --argc;
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
}
