// SPDX-License-Identifier: Apache-2.0
// A device cache for bench/cuda/attention.py, one layer of a model's shape with a made-up calibration that is
// the same for every group of heads, and batches of eigenproblems for eigen.py. Plain C functions; 0 or more
// is success, -1 an error that kvspan_bench_error tells.
#include <cmath>
#include <cstring>
#include <memory>
#include <numbers>
#include <string>
#include <vector>

#include "cuda/bands/bands_tiles.h"
#include "cuda/bands/device_recipe.h"
#include "kvspan/calibration.h"
#include "kvspan/cuda.h"

#define KVSPAN_BENCH_API extern "C" __attribute__((visibility("default")))

namespace {

using namespace kvspan;

thread_local std::string last_error;

template <class T>
int failed(const Result<T>& result) {
  last_error = result.error().message;
  return -1;
}

struct Bench {
  CacheShape shape;
  std::unique_ptr<DeviceCache> cache;
  std::string widths;
  double code_bytes = 0.0;  // of a token
};

CacheShape shape_of(int kv_heads, int repeats, int dim) {
  LayerShape layer;
  layer.kv_heads = kv_heads;
  layer.query_heads = kv_heads * repeats;
  layer.key_dim = layer.value_dim = dim;
  layer.rope.pairs = Rope::Pairs::kHalves;
  layer.rope.rotated_dims = dim;
  for (int i = 0; i < dim / 2; ++i) layer.rope.angles.push_back(std::pow(500000.0, -2.0 * i / dim));
  layer.logit_scale = 1.0f / std::sqrt(static_cast<float>(dim));
  return {{layer}};
}

// z of a group = C sigma e with C the discrete cosine transform and variances that fall by
// `octaves` halvings from the first direction to the last; means of 0.3.
Calibration calibration_of(const CacheShape& shape, int group_heads, double octaves) {
  const LayerShape& l = shape.layers[0];
  const auto H = std::size_t(l.kv_heads), d = std::size_t(l.key_dim), D = 2 * H * d;
  const auto h = std::size_t(group_heads), w = 2 * h * d;  // of a group
  std::vector<double> sigma(w), cosines(w * w);
  double energy = 0.0;
  for (std::size_t i = 0; i < w; ++i) {
    sigma[i] = std::exp2(-0.5 * octaves * double(i) / double(w));
    energy += sigma[i] * sigma[i] / double(w);
    for (std::size_t j = 0; j < w; ++j) {
      cosines[j * w + i] = std::sqrt((i == 0 ? 1.0 : 2.0) / double(w)) *
                           std::cos(std::numbers::pi * double(i) * (double(j) + 0.5) / double(w));
    }
  }
  for (double& s : sigma) s /= std::sqrt(energy);
  std::vector<double> second(w * w);
  for (std::size_t a = 0; a < w; ++a) {
    for (std::size_t b = 0; b < w; ++b) {
      double sum = 0.09;
      for (std::size_t i = 0; i < w; ++i) {
        sum += cosines[a * w + i] * cosines[b * w + i] * sigma[i] * sigma[i];
      }
      second[a * w + b] = sum;
    }
  }
  // Where number j of a group's z lies in the layer's.
  const auto place = [&](std::size_t group, std::size_t j) {
    return j < h * d ? group * h * d + j : H * d + group * h * d + j - h * d;
  };
  Calibration c;
  c.tokens = c.window = 4096;
  LayerCalibration out;
  out.key_mean.assign(H * d, 0.3f);
  out.value_mean.assign(H * d, 0.3f);
  out.joint_moment.assign(D * D, 0.09f);
  for (std::size_t g = 0; g < H / h; ++g) {
    for (std::size_t a = 0; a < w; ++a) {
      for (std::size_t b = 0; b < w; ++b) {
        out.joint_moment[place(g, a) * D + place(g, b)] = float(second[a * w + b]);
      }
    }
  }
  out.rotated_key_mean.assign(H * d, 0.0f);
  out.rotated_key_moment.assign(H * d * H * d, 0.0f);
  for (std::size_t i = 0; i < H * d; ++i) out.rotated_key_moment[i * H * d + i] = 1.0f;
  out.output_metric.assign(H * d * d, 0.0f);
  for (std::size_t i = 0; i < H; ++i) {
    for (std::size_t j = 0; j < d; ++j) out.output_metric[i * d * d + j * d + j] = 1.0f;
  }
  out.query_moment = out.raw_query_moment = out.key_metric = out.value_metric = out.output_metric;
  out.residual_energy = 1.0;
  std::uint64_t state = 1;
  const auto normal = [&] {  // twelve uniform numbers
    double sum = -6.0;
    for (int i = 0; i < 12; ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      sum += double(state >> 11) * 0x1p-53;
    }
    return sum;
  };
  std::vector<double> e(w);
  for (std::int32_t t = 0; t < 4096; t += 31) {
    c.sample_positions.push_back(t);
    std::vector<float> row(D);
    for (double& x : e) x = normal();
    for (std::size_t j = 0; j < w; ++j) {
      double sum = 0.3;
      for (std::size_t i = 0; i < w; ++i) sum += cosines[j * w + i] * sigma[i] * e[i];
      for (std::size_t g = 0; g < H / h; ++g) row[place(g, j)] = float(sum);
    }
    out.sample_rows.insert(out.sample_rows.end(), row.begin(), row.end());
  }
  out.key_residuals.assign(H * std::size_t(kResidualRanks) * kResidualPercentiles.size(), 0.3f);
  out.value_residuals = out.key_residuals;
  c.layers.push_back(std::move(out));
  return c;
}

}  // namespace

KVSPAN_BENCH_API const char* kvspan_bench_error() {
  return last_error.c_str();
}

KVSPAN_BENCH_API Bench* kvspan_bench_create(int kv_heads, int repeats, int dim, int group_heads,
                                            double octaves, const char* recipe, std::int64_t budget,
                                            int sequences, int max_tokens,
                                            std::int64_t launch_tokens) {
  auto bench = std::make_unique<Bench>();
  bench->shape = shape_of(kv_heads, repeats, dim);
  const Calibration calibration = calibration_of(bench->shape, group_heads, octaves);
  DeviceOptions options;
  options.budget_bytes = static_cast<std::size_t>(budget);
  options.max_sequences = sequences;
  options.max_tokens = max_tokens;
  options.launch_tokens = launch_tokens;
  auto cache = DeviceCache::create(bench->shape, recipe, &calibration, options);
  if (!cache) {
    failed(cache);
    return nullptr;
  }
  bench->cache = std::move(*cache);
  const auto made = cuda::device_recipe(bench->shape, recipe, &calibration);
  for (const auto& code : made->codes[0]) {
    const cuda::BandsTiles tiles(code->layout());
    bench->code_bytes += double(tiles.tile_bytes()) / cuda::kTileTokens;
    if (!bench->widths.empty()) continue;
    for (const int width : tiles.widths()) bench->widths += std::to_string(width) + " ";
  }
  return bench.release();
}

KVSPAN_BENCH_API void kvspan_bench_destroy(Bench* bench) {
  delete bench;
}

KVSPAN_BENCH_API const char* kvspan_bench_widths(Bench* bench) {
  return bench->widths.c_str();
}

KVSPAN_BENCH_API double kvspan_bench_code_bytes(Bench* bench) {
  return bench->code_bytes;
}

KVSPAN_BENCH_API double kvspan_bench_used_bytes(Bench* bench) {
  return double(bench->cache->used_bytes());
}

KVSPAN_BENCH_API int kvspan_bench_add(Bench* bench) {
  const auto made = bench->cache->add();
  return made ? *made : failed(made);
}

// f16 rows [n, kv_heads, dim].
KVSPAN_BENCH_API int kvspan_bench_append(Bench* bench, int sequence, int n, const void* keys,
                                         const void* values, void* stream) {
  const DeviceStep steps[] = {{sequence, n}};
  const Status status = bench->cache->append(0, steps, {keys}, {values}, stream);
  return status ? 0 : failed(status);
}

KVSPAN_BENCH_API int kvspan_bench_settle(Bench* bench, int sequence, void* stream) {
  const DeviceStep steps[] = {{sequence, 0}};
  const Status status = bench->cache->settle(0, steps, stream);
  return status ? 0 : failed(status);
}

// One query position of each of `count` sequences: f16 [count, query_heads, dim].
KVSPAN_BENCH_API int kvspan_bench_attend(Bench* bench, const int* sequences, int count,
                                         const void* queries, void* out, void* stream) {
  std::vector<DeviceStep> steps;
  for (int i = 0; i < count; ++i) steps.push_back({sequences[i], 1});
  const Status status = bench->cache->attend(0, steps, {queries}, {out}, stream);
  return status ? 0 : failed(status);
}

// For eigen.py: rows f16 [slabs, tokens, heads, dim].
KVSPAN_BENCH_API DeviceGramEigen* kvspan_bench_eigen_create(int blocks, int dim) {
  auto solver = DeviceGramEigen::create(blocks, dim);
  if (!solver) {
    last_error = solver.error().message;
    return nullptr;
  }
  return std::move(solver).value().release();
}

KVSPAN_BENCH_API int kvspan_bench_eigen_run(DeviceGramEigen* solver, int slabs, int heads, int tokens, int dim,
                                            const void* rows, void* stream) {
  for (int s = 0; s < slabs; ++s) {
    const auto* const slab = static_cast<const std::uint16_t*>(rows) + std::int64_t{s} * tokens * heads * dim;
    const Status status = solver->gram(s * heads, heads, tokens, {slab}, stream);
    if (!status) return failed(status);
  }
  const Status status = solver->solve(stream);
  return status ? 0 : failed(status);
}
