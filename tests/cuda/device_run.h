// SPDX-License-Identifier: Apache-2.0
// Running a device cache over a synthetic text, and what it should have answered.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <span>
#include <vector>

#include "cuda/bands/bands_tiles.h"
#include "cuda/bands/device_recipe.h"
#include "kvspan/cuda.h"
#include "tests/cuda/unit_bytes.h"
#include "tests/method/synthetic.h"

namespace kvspan::testing {

inline bool has_device() {
  int count = 0;
  const bool found = cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
  cudaGetLastError();
  return found;
}
#define KVSPAN_NEEDS_DEVICE() \
  if (!::kvspan::testing::has_device()) GTEST_SKIP() << "no CUDA device"

template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(std::span<const T> numbers) : DeviceArray(numbers.size()) {
    EXPECT_EQ(cudaMemcpy(data_, numbers.data(), numbers.size_bytes(), cudaMemcpyHostToDevice),
              cudaSuccess);
  }
  explicit DeviceArray(std::size_t count) : count_(count) {
    EXPECT_EQ(cudaMalloc(&data_, count * sizeof(T)), cudaSuccess);
    EXPECT_EQ(cudaMemset(data_, 0xff, count * sizeof(T)), cudaSuccess);  // not a number
  }
  DeviceArray(const DeviceArray&) = delete;
  ~DeviceArray() { cudaFree(data_); }
  void* data() const { return data_; }
  std::vector<T> read() const {
    std::vector<T> numbers(count_);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(numbers.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost),
              cudaSuccess);
    return numbers;
  }

 private:
  std::size_t count_;
  void* data_ = nullptr;
};

// A layer of a model, as wide as asked for.
inline CacheShape wide_shape(std::int32_t kv_heads, std::int32_t repeats, std::int32_t dim) {
  CacheShape shape = synthetic_shape(1, kv_heads, dim);
  shape.layers[0].query_heads = repeats * kv_heads;
  return shape;
}

// One step of one layer for the sequences at their ends; texts[i] gives the rows of sequence i.
// Returns [sum of tokens, query_heads, value_dim].
inline std::vector<float> step(DeviceCache& cache, int layer, std::span<const DeviceStep> steps,
                               std::span<const SyntheticText* const> texts,
                               std::span<const std::int32_t> firsts) {
  const LayerShape& l = cache.shape().layers[std::size_t(layer)];
  std::vector<float> keys, values, queries;
  std::size_t total = 0;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const auto at = std::size_t(layer);
    const KvRows rows = texts[i]->rows(at, firsts[i], steps[i].tokens);
    const Queries q = texts[i]->queries(at, firsts[i], steps[i].tokens);
    const auto n = std::size_t(steps[i].tokens);
    keys.insert(keys.end(), rows.keys.data,
                rows.keys.data + n * std::size_t(l.kv_heads * l.key_dim));
    values.insert(values.end(), rows.values.data,
                  rows.values.data + n * std::size_t(l.kv_heads * l.value_dim));
    queries.insert(queries.end(), q.rows.data,
                   q.rows.data + n * std::size_t(l.query_heads * l.key_dim));
    total += n;
  }
  const DeviceArray<float> k{std::span<const float>(keys)}, v{std::span<const float>(values)},
      q{std::span<const float>(queries)};
  const DeviceArray<float> out(total * std::size_t(l.query_heads * l.value_dim));
  const auto ok = [](const Status& status) {
    EXPECT_TRUE(status) << (status ? "" : status.error().message);
  };
  ok(cache.append(layer, steps, {k.data(), DeviceNumber::kF32}, {v.data(), DeviceNumber::kF32},
                  nullptr));
  ok(cache.attend(layer, steps, {q.data(), DeviceNumber::kF32}, {out.data(), DeviceNumber::kF32},
                  nullptr));
  ok(cache.settle(layer, steps, nullptr));
  return out.read();
}

// One step of all layers for one sequence; their answers one after the other.
inline std::vector<float> step_layers(DeviceCache& cache, std::int32_t sequence,
                                      const SyntheticText& text, std::int32_t first,
                                      std::int32_t n) {
  const DeviceStep steps[] = {{sequence, n}};
  const SyntheticText* const texts[] = {&text};
  const std::int32_t firsts[] = {first};
  std::vector<float> all;
  for (int l = 0; l < static_cast<int>(cache.shape().layers.size()); ++l) {
    const std::vector<float> out = step(cache, l, steps, texts, firsts);
    all.insert(all.end(), out.begin(), out.end());
  }
  return all;
}

// Null where it could not be made, which has failed the test.
inline std::unique_ptr<DeviceCache> made_cache(const CacheShape& shape, const std::string& recipe,
                                               const Calibration& calibration,
                                               const DeviceOptions& options) {
  auto made = DeviceCache::create(shape, recipe, &calibration, options);
  EXPECT_TRUE(made) << (made ? "" : made.error().message);
  return made ? std::move(*made) : nullptr;
}

// A cache of one layer with one sequence, number 0, that holds the first tokens of a text, taken in
// in blocks that end in the middle of tiles; and what its codes are.
struct FilledCache {
  std::unique_ptr<DeviceCache> cache;
  cuda::DeviceRecipe recipe;
  std::int32_t held = 0, coded = 0;  // tokens; positions from recipe.sink to `coded` are codes
};

// rebuild_tokens: as DeviceOptions has them. Nothing in it: it could not be made, which has failed the test.
inline FilledCache filled_cache(const std::string& recipe, const SyntheticText& text,
                                const Calibration& calibration, const CacheShape& shape,
                                std::int32_t tokens, std::int32_t rebuild_tokens = 0) {
  FilledCache filled;
  DeviceOptions options;
  options.budget_bytes = std::size_t{64} << 20;
  options.max_tokens = 1024;
  options.rebuild_tokens = rebuild_tokens;
  auto codes = cuda::device_recipe(shape, recipe, &calibration);
  filled.cache = made_cache(shape, recipe, calibration, options);
  if (filled.cache == nullptr || !codes) return {};
  filled.recipe = std::move(*codes);
  const std::int32_t s = filled.cache->add().value();
  for (const std::int32_t n : {7, 250, 16, 1, tokens - 274}) {
    step_layers(*filled.cache, s, text, filled.held, n);
    filled.held += n;
  }
  const std::int32_t sink = filled.recipe.sink, recent = filled.recipe.recent;
  if (!filled.recipe.codes[0].empty()) {
    filled.coded = sink + (filled.held - sink - recent) / 16 * 16;
  }
  return filled;
}

// How the device lays out codes of the groups of a layer: all with as many chunks.
inline std::vector<cuda::BandsTiles> layouts_of(
    std::span<const std::shared_ptr<const BandsCode>> codes) {
  int chunks = 0;
  for (const auto& code : codes) chunks = std::max(chunks, cuda::BandsTiles(code->layout()).chunks());
  std::vector<cuda::BandsTiles> layouts;
  for (const auto& code : codes) layouts.emplace_back(code->layout(), chunks);
  return layouts;
}

inline float as_f16(float x) {
  return __half2float(__float2half(x));
}

// What a query's answer is, and how far a device may be from it: six standard deviations of all
// roundings that attention makes, each counted as independent and uniform.
struct Answer {
  std::vector<double> out, error;  // [value_dim]
};

// Exact attention of query head `head` at `position` to what the device holds: codes in `tiles` for
// positions [sink, coded), f16 rows elsewhere. Keys of codes as attention reads them (key_tiles).
class Reference {
 public:
  Reference(const LayerShape& layer, const SyntheticText& text, std::size_t index,
            std::vector<std::shared_ptr<const BandsCode>> codes,
            std::vector<std::vector<std::byte>> tiles, std::int32_t sink, std::int32_t coded)
      : layer_(layer),
        text_(text),
        index_(index),
        codes_(std::move(codes)),
        tiles_(std::move(tiles)),
        sink_(sink),
        coded_(coded),
        layouts_(layouts_of(codes_)) {
    for (const cuda::BandsTiles& layout : layouts_) {
      const int even = (layout.chunks() + 1) / 2 * 2;
      units_.push_back(layout.all_of_width(2) ? cuda::paired_units(layout, even) : cuda::score_units(layout));
    }
    for (const auto& code : codes_) {
      for (std::int32_t h = 0; h < code->heads(); ++h) {
        std::vector<float> rows(std::size_t(code->key_dim()) * std::size_t(code->places()));
        code->read_key_rows(h, rows.data());
        key_rows_.push_back(std::move(rows));
      }
    }
  }

  Answer answer(std::int32_t position, std::int32_t head) const {
    const std::int32_t repeats = layer_.query_heads / layer_.kv_heads, kv = head / repeats;
    const auto dv = std::size_t(layer_.value_dim);
    const float* q = text_.queries(index_, position, 1).rows.row(0, head);
    const std::int32_t first = layer_.window > 0 ? std::max(0, position - layer_.window + 1) : 0;
    std::vector<double> scores, deviations, weighed;
    std::vector<std::vector<double>> values;
    std::vector<bool> is_coded;
    for (std::int32_t t = first; t <= position; ++t) {
      const bool coded = coded_ > sink_ && t >= sink_ && t < coded_;
      scores.push_back(0.0), deviations.push_back(0.0), weighed.push_back(1.0);
      values.emplace_back(dv);
      is_coded.push_back(coded);
      if (coded) {
        of_codes(q, kv, t, scores.back(), deviations.back(), weighed.back(), values.back());
      } else {
        const KvRows row = text_.rows(index_, t, 1);
        for (std::size_t i = 0; i < std::size_t(layer_.key_dim); ++i) {
          scores.back() += double{q[i]} * as_f16(row.keys.row(0, kv)[i]);
        }
        scores.back() *= layer_.logit_scale;
        for (std::size_t i = 0; i < dv; ++i) values.back()[i] = as_f16(row.values.row(0, kv)[i]);
      }
      if (layer_.soft_cap > 0.0f) {
        scores.back() = layer_.soft_cap * std::tanh(scores.back() / layer_.soft_cap);
      }
    }
    return merge(scores, deviations, weighed, values, is_coded, kv);
  }

 private:
  // Score, its standard deviation, gain and value of a coded token.
  void of_codes(const float* q, std::int32_t kv, std::int32_t t, double& score, double& deviation,
                double& gain, std::vector<double>& value) const {
    const std::size_t g = std::size_t(kv) / std::size_t(codes_[0]->heads());
    const BandsCode& code = *codes_[g];
    const std::int32_t within = kv % code.heads();
    const auto d = std::size_t(layer_.key_dim), n = std::size_t(code.places());
    const std::byte* tile =
        tiles_[g].data() + std::size_t(t / cuda::kTileTokens) * layouts_[g].tile_bytes();
    const int token = t % cuda::kTileTokens;
    const std::int8_t gain_code = layouts_[g].gain(tile, token);
    gain = code.gain() ? log_gain(gain_code) : 1.0;
    std::vector<double> level(n);
    for (std::size_t p = 0; p < code.layout().stored(); ++p) {
      level[p] = layouts_[g].get(tile, token, int(p)) + 0.5;
    }
    std::vector<float> u(q, q + d), mu(code.key_mean(within), code.key_mean(within) + d);
    double mean_pairs = 0.0;
    const auto pairs = code.rope().angles.size();
    const bool neighbours = code.rope().pairs == Rope::Pairs::kNeighbours;
    for (std::size_t j = 0; j < pairs; ++j) {
      const std::size_t a = neighbours ? 2 * j : j, b = neighbours ? 2 * j + 1 : j + pairs;
      const double own = std::hypot(double{q[a]}, double{q[b]});
      mean_pairs += own * std::hypot(double{mu[a]}, double{mu[b]}) * code.rope().magnitude;
    }
    // The query at the anchor, and what the mean adds: q . R(t) mu.
    turn_back(code, code.anchor_of(t), u);
    double mean = 0.0;
    {
      std::vector<float> at(q, q + d);
      turn_back(code, t, at);
      for (std::size_t i = 0; i < d; ++i) mean += double{at[i]} * double{mu[i]};
    }
    const std::vector<float>& rows = key_rows_[std::size_t(kv)];
    std::vector<double> moved(n);
    double most = 0.0, products = 0.0;
    for (std::size_t p = 0; p < n; ++p) {
      for (std::size_t i = 0; i < d; ++i) {
        const double product = double{u[i]} * rows[i * n + p];
        moved[p] += product;
        products += product * level[p] * product * level[p];
      }
      most = std::max(most, std::abs(moved[p]));
      score += moved[p] * level[p] * gain;
    }
    // Bytes that are multiplied, each as far as it is from its middle.
    double square = 0.0;
    for (const cuda::ScoreUnit& unit : units_[g]) {
      const bool refined = std::any_of(units_[g].begin(), units_[g].end(), [&](const auto& other) {
        return other.refines && other.chunk == unit.chunk && !unit.refines;
      });
      if (unit.chunk >= layouts_[g].chunks()) continue;  // empty
      if (refined) continue;  // what is left of its coefficients is rounded in the other
      for (int c = 0; c < 4; ++c) {
        const std::vector<int> bytes = unit_bytes_of(tile, unit, token, c);
        for (std::size_t i = 0; i < 16; ++i) {
          const double byte = bytes[i] - 0.5 * cuda::unit_form(unit.kind).full[i];
          square += std::ldexp(byte * byte, -2 * unit.exponent);
        }
      }
    }
    score = (score + mean) * layer_.logit_scale;
    // Rounding to a step of s has the deviation s / sqrt(12); coefficients of bytes are at most 1.51
    // times as large as the largest of the moved query. Before that turned queries, the basis and
    // their products are rounded to f16, each off by up to 2^-11 of itself. Products with the mean
    // have f16 factors too, with at most four times a pair's product in all terms.
    const double of_moved = 1.51 * most / 127.0 / std::sqrt(12.0) * std::sqrt(square) * gain;
    const double of_halves = 1.51 * std::sqrt(3.0 * products) * std::ldexp(gain, -11);
    const double of_mean = 4.0 * mean_pairs * std::ldexp(1.0, -11);
    deviation = layer_.logit_scale *
                (std::sqrt(of_moved * of_moved + of_halves * of_halves) + of_mean / 6.0);
    const BandsCode::Rows values = code.value_rows(within);
    for (std::size_t i = 0; i < value.size(); ++i) {
      double sum = 0.0;
      for (std::size_t p = 0; p < n; ++p) {
        sum += double{to_float(values.numbers[i * std::size_t(code.row_stride()) + p])} *
               code.steps()[p] * level[p];
      }
      value[i] = sum * gain * values.scales[i] + code.value_mean(within)[i];
    }
  }

  // x <- R(t)' x.
  static void turn_back(const BandsCode& code, std::int32_t t, std::vector<float>& x) {
    const float magnitude = code.rope().magnitude;
    rope_unrotate(code.rope(), t, x.data());
    for (std::size_t i = 0; i < 2 * code.rope().angles.size(); ++i) x[i] *= magnitude * magnitude;
  }

  Answer merge(const std::vector<double>& scores, const std::vector<double>& deviations,
               const std::vector<double>& gains, const std::vector<std::vector<double>>& values,
               const std::vector<bool>& is_coded, std::int32_t kv) const {
    const std::size_t dv = values[0].size();
    Answer answer{std::vector<double>(dv), std::vector<double>(dv)};
    const double most = *std::max_element(scores.begin(), scores.end());
    double total = 0.0, largest = 0.0;
    std::vector<double> weights;
    for (std::size_t t = 0; t < scores.size(); ++t) {
      weights.push_back(std::exp(scores[t] - most));
      total += weights.back();
      if (is_coded[t]) largest = std::max(largest, weights.back() * gains[t]);
      for (std::size_t i = 0; i < dv; ++i) answer.out[i] += weights.back() * values[t][i];
    }
    for (double& x : answer.out) x /= total;
    // Weights times gains are whole 254ths of a power of two, at most twice the largest, rounded up
    // or down with a chance that makes them right on average: off by at most half a unit in the
    // root mean square.
    const double step = 2.0 * largest / 254.0 / 2.0 / total;
    for (std::size_t i = 0; i < dv; ++i) {
      double by_scores = 0.0, by_weights = 0.0;
      for (std::size_t t = 0; t < scores.size(); ++t) {
        by_scores += weights[t] / total * deviations[t] * std::abs(values[t][i] - answer.out[i]);
        if (!is_coded[t]) continue;
        const double own = (values[t][i] - mean_of(kv, i)) / gains[t];
        by_weights += own * own;
      }
      const double f32 = 1e-5 * (1.0 + std::abs(answer.out[i]));
      answer.error[i] = 6.0 * std::hypot(by_scores, step * std::sqrt(by_weights)) + f32;
    }
    return answer;
  }
  double mean_of(std::int32_t kv, std::size_t i) const {
    if (codes_.empty()) return 0.0;
    return codes_[std::size_t(kv / codes_[0]->heads())]->value_mean(kv % codes_[0]->heads())[i];
  }

  const LayerShape& layer_;
  const SyntheticText& text_;
  std::size_t index_;
  std::vector<std::shared_ptr<const BandsCode>> codes_;
  std::vector<std::vector<std::byte>> tiles_;
  std::int32_t sink_, coded_;
  std::vector<cuda::BandsTiles> layouts_;
  std::vector<std::vector<cuda::ScoreUnit>> units_;
  std::vector<std::vector<float>> key_rows_;  // by KV head
};

}  // namespace kvspan::testing
