// SPDX-License-Identifier: Apache-2.0
// Decoding over 8K tokens that were coded 64 at a time with codes they share, as methods do it,
// beside the same over full-rank f16 rows, in one run: one query, layers in turn, so many that the
// caches do not hold them. Rates are those of the median pass, by processor time (bench/machine.h).
//   us_layer   one layer's attention, all threads
//   speedup    full-rank f16 of the same shape and threads, measured just before, over this
//   GB/s, memory   bytes of payload and scales read a second, beside what the memory gives
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <thread>
#include <vector>

#include "attention/attend.h"
#include "base/random.h"
#include "base/thread_pool.h"
#include "bench/machine.h"
#include "cache/code/coded_side.h"
#include "cache/rows/encode_rows.h"

namespace kvspan {
namespace {

constexpr std::int32_t kTokens = 8192, kUnit = 64;

struct Variant {
  const char* name;
  const char* codec;  // null: full rank
  int rank_divisor;
  Domain domain = Domain::kPostRopeKey;
};
constexpr Variant kVariants[] = {{"full_f16", nullptr, 1},
                                 {"rank_d/4_f16", "f16", 4},
                                 {"rank_d/4_int8", "int8:row", 4},
                                 {"rank_d/4_int8_head_scale", "int8:head=16", 4},
                                 {"rank_d/4_int4_row", "int4:row", 4},
                                 {"anchored_d/4_int8", "int8:row", 4, Domain::kAnchoredKey},
                                 {"int8_group_32", "int8:group=32", 1},
                                 {"int4_group_32", "int4:group=32", 1},
                                 {"q8_0", "q8_0", 1},
                                 {"q4_0", "q4_0", 1}};

LayerShape layer_of(int query_heads, int kv_heads, int dim) {
  LayerShape layer;
  layer.query_heads = query_heads;
  layer.kv_heads = kv_heads;
  layer.key_dim = layer.value_dim = dim;
  layer.logit_scale = 1.0f / std::sqrt(static_cast<float>(dim));
  layer.rope.pairs = Rope::Pairs::kHalves;
  layer.rope.rotated_dims = dim;
  for (int i = 0; i < dim / 2; ++i) layer.rope.angles.push_back(std::pow(1e4, -2.0 * i / dim));
  return layer;
}

// A code that keeps the first coordinates: its numbers do not matter to the time.
std::shared_ptr<const Code> code_of(const Variant& variant, const LayerShape& layer, bool keys) {
  const auto d = static_cast<std::size_t>(layer.key_dim);
  const std::size_t r = d / static_cast<std::size_t>(variant.rank_divisor);
  std::vector<float> analysis(r * d, 0.0f);
  for (std::size_t i = 0; i < r; ++i) analysis[i * d + i] = 1.0f;
  CodeParts parts;
  parts.domain = keys ? variant.domain : Domain::kValue;
  parts.dim = layer.key_dim;
  if (parts.domain == Domain::kAnchoredKey) parts.anchor_block = 128;
  parts.rope = layer.rope;
  parts.analysis = {analysis.data(), {r, d}};
  parts.codec = parse_codec_spec(variant.codec).value();
  return Code::create(parts, nullptr).value();
}

std::vector<SegmentList> lists_of(const Variant& variant, const LayerShape& layer, int layers) {
  const auto heads = static_cast<std::size_t>(layer.kv_heads);
  const auto d = static_cast<std::size_t>(layer.key_dim);
  Random random(1);
  std::vector<float> rows(kTokens * heads * d);
  for (float& x : rows) x = static_cast<float>(random.uniform() - 0.5);
  std::vector<std::int32_t> positions(kTokens);
  for (std::int32_t t = 0; t < kTokens; ++t) positions[static_cast<std::size_t>(t)] = t;
  std::vector<std::shared_ptr<const Code>> keys, values;
  for (std::size_t h = 0; variant.codec != nullptr && h < heads; ++h) {
    keys.push_back(code_of(variant, layer, true));
    values.push_back(code_of(variant, layer, false));
  }
  std::vector<SegmentList> lists;
  const GroupShape shape{layer.kv_heads, layer.key_dim, layer.value_dim, Element::kF16};
  for (int l = 0; l < layers; ++l) {
    SegmentList& list = lists.emplace_back(shape, nullptr);
    const TensorView<const float, 3> all(rows.data(), {kTokens, heads, d});
    if (variant.codec == nullptr) {
      list.extend(positions);
      for (int h = 0; h < layer.kv_heads; ++h) list.write(0, all, all, h, 0, kTokens);
      continue;
    }
    for (std::size_t t = 0; t < kTokens; t += kUnit) {
      const TensorView<const float, 3> some(rows.data() + t * heads * d, {kUnit, heads, d});
      const auto at = std::span(positions).subspan(t, kUnit);
      list.extend(at);
      list.replace(static_cast<std::int32_t>(t),
                   encode_rows({some, some, at}, shape, {keys, values, false}, nullptr).value());
    }
  }
  return lists;
}

double bytes_of_list(const SegmentList& list) {
  double bytes = 0.0;
  for (const Segment& segment : list.segments()) {
    bytes += static_cast<double>(segment.keys.bytes() + segment.values.bytes());
    for (const CodedSide* side : {segment.coded_keys.get(), segment.coded_values.get()}) {
      if (side == nullptr) continue;
      bytes += static_cast<double>(side->coefficient_bytes() + side->scale_bytes());
    }
  }
  return bytes;
}

void decode(benchmark::State& state, const Variant& variant) {
  const LayerShape layer =
      layer_of(static_cast<int>(state.range(0)), static_cast<int>(state.range(1)),
               static_cast<int>(state.range(2)));
  const int threads = static_cast<int>(state.range(3));
  const int layers = layer.key_dim == 64 ? 32 : 8;
  const std::vector<SegmentList> lists = lists_of(variant, layer, layers);
  const auto heads = static_cast<std::size_t>(layer.query_heads);
  const auto d = static_cast<std::size_t>(layer.key_dim);
  const std::vector<float> q(heads * d, 0.1f);
  std::vector<float> out(heads * d);
  const std::int32_t position = kTokens;
  AttentionScratch scratch;
  ThreadPool pool(threads);
  std::vector<double> seconds;
  for (auto _ : state) {
    const double start = bench::busy_seconds();
    pool.run([&](Team& team) {
      for (const SegmentList& list : lists) {
        (void)attend_segments(layer, list, {{q.data(), {1, heads, d}}, std::span(&position, 1)},
                              {out.data(), {1, heads, d}}, {}, scratch, team);
      }
    });
    seconds.push_back((bench::busy_seconds() - start) / threads);
    benchmark::ClobberMemory();
  }
  const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2);
  std::nth_element(seconds.begin(), middle, seconds.end());
  const double layer_seconds = *middle / layers;
  static std::map<std::pair<int, int>, double> full;  // by shape and threads
  double& reference = full[{layer.key_dim, threads}];
  if (variant.codec == nullptr) reference = layer_seconds;
  state.counters["us_layer"] = layer_seconds * 1e6;
  if (reference > 0.0) state.counters["speedup"] = reference / layer_seconds;
  state.counters["GB/s"] = 1e-9 * bytes_of_list(lists[0]) / layer_seconds;
  state.counters["memory"] = 1e-9 * bench::memory_bytes_per_second(threads);
}

void add_all() {
  const int all = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  for (const int threads : {1, all}) {
    for (const auto& shape : {std::array<int, 3>{9, 3, 64}, std::array<int, 3>{32, 8, 128}}) {
      for (const Variant& variant : kVariants) {
        benchmark::RegisterBenchmark((std::string("decode/") + variant.name).c_str(), decode,
                                     variant)
            ->ArgNames({"q", "kv", "d", "threads"})
            ->Args({shape[0], shape[1], shape[2], threads})
            ->UseRealTime()
            ->MeasureProcessCPUTime()
            ->Unit(benchmark::kMillisecond);
      }
    }
  }
}

}  // namespace
}  // namespace kvspan

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  kvspan::add_all();
  benchmark::RunSpecifiedBenchmarks();
}
