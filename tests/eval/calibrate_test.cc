// SPDX-License-Identifier: Apache-2.0
// Calibrations against plain double-precision loops over recorded activations of real models.
#include "eval/calibrate/calibrate.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <numeric>

#include "api/sample_residuals.h"
#include "base/half.h"
#include "cache/rope.h"
#include "eval/perplexity/windows.h"
#include "io/atomic_file.h"
#include "llama/tokenizer.h"
#include "tests/eval/recording_cache.h"
#include "tests/io/temporary_folder.h"

namespace kvspan::testing {
namespace {

using Row = RecordingCache::Row;
constexpr std::int32_t kSkip = 16;

std::string data(const std::string& name) {
  return std::string(KVSPAN_SOURCE_DIR "/data/") + name;
}
std::unique_ptr<Engine> load(const std::string& name, std::int32_t block = 48) {
  auto engine = Engine::load(data(name), {2, block});
  EXPECT_TRUE(engine) << engine.error().message;
  return std::move(*engine);
}
std::string stories() {
  const auto bytes = read_file(data("text/tinystories_head.txt")).value();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Windows of any tokens; fixtures have weights at random and no tokenizer worth the name.
std::vector<std::vector<Token>> some_windows(const Engine& engine) {
  std::vector<std::vector<Token>> windows;
  Token next = 5;
  for (const std::size_t length : {60, 33, 50}) {
    windows.emplace_back();
    for (std::size_t i = 0; i < length; ++i) {
      next = (next * 7 + 3) % engine.info().vocabulary;
      windows.back().push_back(next);
    }
  }
  return windows;
}

std::vector<Row> counted(const std::vector<Row>& rows) {
  std::vector<Row> out;
  for (const Row& row : rows) {
    if (row.position >= kSkip) out.push_back(row);
  }
  return out;
}

// Numbers [first, first + width) of rows: E[x x'].
std::vector<double> moment_of(const std::vector<Row>& rows, std::size_t first, std::size_t width) {
  std::vector<double> moment(width * width, 0.0);
  for (const Row& row : rows) {
    for (std::size_t i = 0; i < width; ++i) {
      for (std::size_t j = 0; j < width; ++j) {
        moment[i * width + j] += double{row.numbers[first + i]} * row.numbers[first + j];
      }
    }
  }
  for (double& entry : moment) entry /= static_cast<double>(rows.size());
  return moment;
}
// E[x y'] of all numbers of two layers' rows.
std::vector<double> moment_between(const std::vector<Row>& left, const std::vector<Row>& right) {
  const std::size_t m = left.front().numbers.size(), n = right.front().numbers.size();
  std::vector<double> moment(m * n, 0.0);
  for (std::size_t t = 0; t < left.size(); ++t) {
    const float* y = right[t].numbers.data();
    for (std::size_t i = 0; i < m; ++i) {
      const double x = left[t].numbers[i];
      double* to = moment.data() + i * n;
      for (std::size_t j = 0; j < n; ++j) to[j] += x * y[j];
    }
  }
  for (double& entry : moment) entry /= static_cast<double>(left.size());
  return moment;
}
std::vector<double> mean_of(const std::vector<Row>& rows) {
  std::vector<double> mean(rows.front().numbers.size(), 0.0);
  for (const Row& row : rows) {
    for (std::size_t i = 0; i < mean.size(); ++i) mean[i] += row.numbers[i];
  }
  for (double& entry : mean) entry /= static_cast<double>(rows.size());
  return mean;
}

// Both sum the same f32 numbers in f64; what differs is the rounding of the result to f32, 2^-24 of
// it, and the order of summation, far below. Unrotated queries differ by two f32 products more.
void expect_close(std::span<const float> got, const std::vector<double>& expected, const char* what,
                  double tolerance = 1e-6) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  double largest = 0.0;
  for (const double x : expected) largest = std::max(largest, std::abs(x));
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], expected[i], tolerance * largest) << what << "[" << i << "]";
  }
}

double energy_of(const std::vector<Row>& rows) {
  double sum = 0.0;
  for (const Row& row : rows) {
    for (const float x : row.numbers) sum += double{x} * x;
  }
  return sum / static_cast<double>(rows.size());
}

// Wo_g' Wo_g of a query head.
std::vector<double> product_of(const LayerShape& shape, const OutputProjection& projection, std::size_t head) {
  const auto dim = static_cast<std::size_t>(shape.value_dim);
  const std::size_t width = static_cast<std::size_t>(shape.query_heads) * dim;
  const auto gain_of = [&](std::size_t o) { return projection.gain.empty() ? 1.0 : double{projection.gain[o]}; };
  const auto reader_of = [&](std::size_t o) { return projection.reader.empty() ? 1.0 : double{projection.reader[o]}; };
  double all = 0.0, read = 0.0;  // squares of the matrix, without and with the reader's gain
  for (std::size_t i = 0; i < projection.weights.size(); ++i) {
    const double x = gain_of(i / width) * projection.weights[i];
    all += x * x;
    read += std::pow(reader_of(i / width) * x, 2.0);
  }
  std::vector<double> product(dim * dim, 0.0);
  for (std::size_t o = 0; o < projection.weights.size() / width; ++o) {
    const double gain = gain_of(o) * reader_of(o) * std::sqrt(all / read);
    const float* w = projection.weights.data() + o * width + head * dim;
    for (std::size_t i = 0; i < dim * dim; ++i) product[i] += gain * gain * w[i / dim] * w[i % dim];
  }
  return product;
}

// What errors of old tokens do, by every seventh counted query (src/api/attention_metrics.h), [kv_heads][dim * dim] each.
struct ReadMetrics {
  std::vector<double> keys, values;
};
ReadMetrics read_metrics(const LayerShape& shape, const OutputProjection& projection, const RecordingCache::Layer& recorded,
                         double factor) {
  const auto dk = static_cast<std::size_t>(shape.key_dim), dv = static_cast<std::size_t>(shape.value_dim);
  const auto heads = static_cast<std::size_t>(shape.kv_heads), query_heads = static_cast<std::size_t>(shape.query_heads);
  ReadMetrics to{std::vector<double>(heads * dk * dk), std::vector<double>(heads * dv * dv)};
  std::size_t counted = 0, sampled = 0, start = 0;
  for (std::size_t t = 0; t < recorded.queries.size(); ++t) {
    const std::int32_t position = recorded.queries[t].position;
    if (position == 0) start = t;
    if (position < kSkip || counted++ % 7 != 0) continue;
    ++sampled;
    const std::int32_t seen = shape.window > 0 ? std::min(position + 1, shape.window) : position + 1;
    for (std::size_t g = 0; g < query_heads; ++g) {
      const std::size_t h = g / (query_heads / heads);
      const float* q = recorded.queries[t].numbers.data() + g * dk;
      std::vector<double> weights;
      std::vector<const float*> values;
      std::vector<bool> old;
      for (std::size_t j = start; j <= t; ++j) {
        if (shape.window > 0 && recorded.keys[j].position <= position - shape.window) continue;
        const float* k = recorded.keys[j].numbers.data() + h * dk;
        weights.push_back(std::exp(shape.logit_scale * std::inner_product(q, q + dk, k, 0.0)));
        values.push_back(recorded.values[j].numbers.data() + h * dv);
        old.push_back(recorded.keys[j].position >= kSkip && recorded.keys[j].position <= position - seen / 4);
      }
      const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
      const std::vector<double> product = product_of(shape, projection, g);
      std::vector<double> out(dv);
      for (std::size_t j = 0; j < weights.size(); ++j) {
        for (std::size_t i = 0; i < dv; ++i) out[i] += weights[j] / sum * values[j][i];
      }
      double moved = 0.0, square = 0.0;
      for (std::size_t j = 0; j < weights.size(); ++j) {
        if (!old[j]) continue;
        const double p = weights[j] / sum;
        for (std::size_t i = 0; i < dv * dv; ++i) {
          moved += p * p * product[i] * (values[j][i / dv] - out[i / dv]) * (values[j][i % dv] - out[i % dv]);
        }
        square += p * p;
      }
      for (std::size_t i = 0; i < dk * dk; ++i) {
        to.keys[h * dk * dk + i] += factor * shape.logit_scale * shape.logit_scale * moved * q[i / dk] * q[i % dk];
      }
      for (std::size_t i = 0; i < dv * dv; ++i) to.values[h * dv * dv + i] += factor * square * product[i];
    }
  }
  // A head counts at least a twentieth of the mean.
  for (const auto& [metric, dim] : {std::pair(&to.keys, dk), std::pair(&to.values, dv)}) {
    std::vector<double> traces(heads);
    for (std::size_t i = 0; i < metric->size(); ++i) {
      (*metric)[i] /= static_cast<double>(sampled);
      if (i % (dim * dim) % (dim + 1) == 0) traces[i / (dim * dim)] += (*metric)[i];
    }
    const double least = 0.05 * std::accumulate(traces.begin(), traces.end(), 0.0) / static_cast<double>(heads);
    for (std::size_t i = 0; i < metric->size(); ++i) (*metric)[i] *= std::max(1.0, least / traces[i / (dim * dim)]);
  }
  return to;
}

// Rows z of the counted tokens.
std::vector<Row> joint_rows(const RecordingCache::Layer& recorded) {
  std::vector<Row> joint = counted(recorded.keys_raw);
  const std::vector<Row> values = counted(recorded.values);
  for (std::size_t i = 0; i < joint.size(); ++i) {
    joint[i].numbers.insert(joint[i].numbers.end(), values[i].numbers.begin(),
                            values[i].numbers.end());
  }
  return joint;
}

void check_layer(const Engine& engine, std::size_t index, const RecordingCache::Layer& recorded,
                 const Calibration& calibration) {
  const LayerShape& shape = engine.cache_shape().layers[index];
  const LayerCalibration& layer = calibration.layers[index];
  const auto heads = static_cast<std::size_t>(shape.kv_heads);
  const auto dk = static_cast<std::size_t>(shape.key_dim);
  const auto dv = static_cast<std::size_t>(shape.value_dim);
  const auto raw = counted(recorded.keys_raw), keys = counted(recorded.keys),
             values = counted(recorded.values), queries = counted(recorded.queries);
  ASSERT_EQ(static_cast<std::int64_t>(raw.size()), calibration.tokens);
  const std::vector<Row> joint = joint_rows(recorded);
  expect_close(layer.key_mean, mean_of(raw), "key_mean");
  expect_close(layer.value_mean, mean_of(values), "value_mean");
  expect_close(layer.joint_moment, moment_of(joint, 0, heads * (dk + dv)), "joint_moment");
  expect_close(layer.rotated_key_mean, mean_of(keys), "rotated_key_mean");
  expect_close(layer.rotated_key_moment, moment_of(keys, 0, heads * dk), "rotated_key_moment");

  const std::size_t group = static_cast<std::size_t>(shape.query_heads) / heads;
  for (std::size_t h = 0; h < heads; ++h) {
    std::vector<Row> of_head, raw_of_head;
    for (const Row& row : queries) {
      for (std::size_t g = 0; g < group; ++g) {
        const auto from = row.numbers.begin() + static_cast<std::ptrdiff_t>((h * group + g) * dk);
        of_head.push_back({row.position, {from, from + static_cast<std::ptrdiff_t>(dk)}});
        raw_of_head.push_back(of_head.back());
        rope_unrotate(shape.rope, row.position, raw_of_head.back().numbers.data());
      }
    }
    expect_close(std::span(layer.query_moment).subspan(h * dk * dk, dk * dk),
                 moment_of(of_head, 0, dk), "query_moment");
    expect_close(std::span(layer.raw_query_moment).subspan(h * dk * dk, dk * dk),
                 moment_of(raw_of_head, 0, dk), "raw_query_moment", 4e-6);
  }
  const auto projection = engine.output_projection(static_cast<int>(index));
  ASSERT_TRUE(projection) << projection.error().message;
  const double energy = energy_of(counted(recorded.inputs));
  EXPECT_NEAR(layer.residual_energy / energy, 1.0, 1e-9);
  double between = 1.0;
  EXPECT_EQ(recorded.post_norm_inputs.empty(), projection->gain.empty());
  if (!projection->gain.empty()) {
    between = 0.0;
    const auto inputs = counted(recorded.post_norm_inputs);
    for (const Row& row : inputs) {
      const double width = static_cast<double>(row.numbers.size());
      between += 1.0 / (energy_of({row}) / width + projection->epsilon);
    }
    between /= static_cast<double>(inputs.size());
  }
  for (std::size_t h = 0; h < heads; ++h) {
    std::vector<double> metric(dv * dv);
    for (std::size_t g = h * group; g < (h + 1) * group; ++g) {
      const std::vector<double> product = product_of(shape, *projection, g);
      for (std::size_t i = 0; i < dv * dv; ++i) metric[i] += product[i] * between / energy / static_cast<double>(group);
    }
    expect_close(std::span(layer.output_metric).subspan(h * dv * dv, dv * dv), metric, "output_metric");
  }
  // Attention is in f32 there.
  const ReadMetrics read = read_metrics(shape, *projection, recorded, between / energy);
  expect_close(layer.key_metric, read.keys, "key_metric", 2e-4);
  expect_close(layer.value_metric, read.values, "value_metric", 2e-5);
  // Samples: rows of the joint stream, in order, rounded to f16.
  const std::size_t width = heads * (dk + dv), count = calibration.sample_positions.size();
  ASSERT_EQ(layer.sample_rows.size(), count * width);
  const std::size_t stride = joint.size() / 20 | 1;
  for (std::size_t s = 0; s < count; ++s) {
    const Row& row = joint[s * stride];
    EXPECT_EQ(calibration.sample_positions[s], row.position);
    for (std::size_t j = 0; j < width; ++j) {
      ASSERT_EQ(layer.sample_rows[s * width + j], to_float(to_half(row.numbers[j])));
    }
  }
}

class CalibrateModels : public ::testing::TestWithParam<const char*> {};

TEST_P(CalibrateModels, EqualsPlainLoopsOverTheActivations) {
  const auto engine = load(GetParam());
  const auto windows = some_windows(*engine);
  RecordingCache recorder(engine->cache_shape());
  engine->set_observer(&recorder);
  for (const auto& window : windows) {
    recorder.clear();
    ASSERT_TRUE(engine->prefill(recorder, window));
  }
  engine->set_observer(nullptr);
  CalibrateOptions options;
  options.skip = kSkip;
  options.samples = 20;
  std::size_t last = 0, total = 0;
  const auto calibration =
      gather_calibration(*engine, windows, options, [&](std::size_t done, std::size_t of) {
        EXPECT_GT(done, last);
        last = done;
        total = of;
      });
  ASSERT_TRUE(calibration) << calibration.error().message;
  EXPECT_EQ(last, total);
  EXPECT_EQ(total, 143u);
  EXPECT_EQ(calibration->fingerprint, engine->fingerprint());
  EXPECT_TRUE(check_calibration(engine->cache_shape(), *calibration));
  for (std::size_t i = 0; i < recorder.layers.size(); ++i) {
    check_layer(*engine, i, recorder.layers[i], *calibration);
  }
  EXPECT_EQ(calibration->neighbours, 2);
  std::vector<std::vector<Row>> rows;
  for (const auto& layer : recorder.layers) rows.push_back(joint_rows(layer));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto& found = calibration->layers[i].cross_moments;
    ASSERT_EQ(found.size(), std::min<std::size_t>(2, rows.size() - 1 - i));
    for (std::size_t j = 0; j < found.size(); ++j) {
      expect_close(found[j], moment_between(rows[i], rows[i + 1 + j]), "cross_moments");
    }
  }
}
// Grouped heads, one RoPE layout each, no RoPE at all, norms after attention, several windows.
INSTANTIATE_TEST_SUITE_P(Files, CalibrateModels,
                         ::testing::Values("models/stories260K.gguf", "fixtures/gemma3.gguf",
                                           "fixtures/gpt2.gguf", "fixtures/qwen3.gguf",
                                           "fixtures/llama_yarn.gguf"));

// The last layer too, which libllama reads on only for the rows whose logits are asked for.
TEST(Calibrate, FindsTheNormAfterAttentionInEveryLayer) {
  const auto engine = load("fixtures/gemma3.gguf");
  for (std::size_t i = 0; i < engine->cache_shape().layers.size(); ++i) {
    const auto projection = engine->output_projection(static_cast<int>(i));
    ASSERT_TRUE(projection) << projection.error().message;
    EXPECT_FALSE(projection->gain.empty()) << "layer " << i;
  }
}

TEST(Calibrate, DoesNotDependOnThreads) {
  const auto one = Engine::load(data("models/stories260K.gguf"), {1, 48}).value();
  const auto two = load("models/stories260K.gguf");
  const auto a = gather_calibration(*one, some_windows(*one), {});
  const auto b = gather_calibration(*two, some_windows(*two), {});
  ASSERT_TRUE(a && b);
  for (std::size_t i = 0; i < a->layers.size(); ++i) {
    EXPECT_EQ(a->layers[i].joint_moment, b->layers[i].joint_moment);
    EXPECT_EQ(a->layers[i].cross_moments, b->layers[i].cross_moments);
    EXPECT_EQ(a->layers[i].raw_query_moment, b->layers[i].raw_query_moment);
    EXPECT_EQ(a->layers[i].key_residuals, b->layers[i].key_residuals);
  }
}

TEST(Calibrate, GathersAsManyNeighboursAsAskedFor) {
  const auto engine = load("models/stories260K.gguf", 512);
  CalibrateOptions options;
  options.tokens = 200;
  const auto usual = plan_calibration(*engine, stories(), options);
  ASSERT_TRUE(usual) << usual.error().message;
  EXPECT_EQ(usual->options.neighbours, 2);
  options.neighbours = 1;
  const auto plan = plan_calibration(*engine, stories(), options);
  ASSERT_TRUE(plan) << plan.error().message;
  const auto calibration = gather_calibration(*engine, plan->windows, plan->options);
  ASSERT_TRUE(calibration) << calibration.error().message;
  EXPECT_EQ(calibration->neighbours, 1);
  EXPECT_EQ(calibration->layers[0].cross_moments.size(), 1u);
  EXPECT_TRUE(plan->fits(*calibration));
  EXPECT_FALSE(usual->fits(*calibration));
  options.neighbours = 9;
  const auto refused = gather_calibration(*engine, plan->windows, options);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("neighbours is 9"), std::string::npos);
}

// 1,024 numbers for a token in every layer are the most.
TEST(Calibrate, GathersNoNeighboursOfWideLayers) {
  LayerShape layer;
  layer.kv_heads = 8;
  layer.key_dim = 64;
  layer.value_dim = 64;
  CacheShape shape{{layer, layer}};
  EXPECT_EQ(default_neighbours(shape), 2);
  shape.layers[1].value_dim = 65;
  EXPECT_EQ(default_neighbours(shape), 0);
}

TEST(Calibrate, ObservingChangesNoLogit) {
  const auto engine = load("fixtures/gemma3.gguf");
  const std::vector<Token> tokens = some_windows(*engine)[1];
  const auto logits = [&](ActivationObserver* observer) {
    engine->set_observer(observer);
    auto cache = make_cache(engine->cache_shape(), "full").value();
    EXPECT_TRUE(engine->prefill(*cache, tokens));
    const auto row = engine->logits(0);
    return std::vector<float>(row.begin(), row.end());
  };
  RecordingCache recorder(engine->cache_shape());
  const auto observed = logits(&recorder);
  EXPECT_FALSE(recorder.layers[0].inputs.empty());
  EXPECT_EQ(observed, logits(nullptr));
}

// A moment with known eigenvectors (the axes, largest last), so residuals are lengths of heads.
TEST(SampleResiduals, AreShareOfLengthOutsideTheLeadingDirections) {
  LayerShape shape;
  shape.query_heads = shape.kv_heads = 1;
  shape.key_dim = shape.value_dim = 8;
  shape.logit_scale = 1.0f;
  LayerCalibration layer;
  layer.joint_moment.assign(16 * 16, 0.0f);
  layer.rotated_key_moment.assign(8 * 8, 0.0f);
  for (std::size_t i = 0; i < 8; ++i) {
    layer.rotated_key_moment[i * 9] = static_cast<float>(i + 1);
    layer.joint_moment[(8 + i) * 17] = static_cast<float>(8 - i);  // values: largest first
  }
  const std::vector<std::int32_t> positions{40, 41};
  layer.sample_rows.assign(2 * 16, 1.0f);
  for (std::size_t j = 0; j < 8; ++j) layer.sample_rows[16 + j] = j == 7 ? 1.0f : 0.0f;
  ASSERT_TRUE(add_sample_residuals(shape, positions, layer));
  for (std::size_t r = 1; r <= 7; ++r) {
    const double whole = std::sqrt((8.0 - static_cast<double>(r)) / 8.0);
    // Keys: residuals `whole` and 0. Values: `whole` twice.
    const std::size_t at = (r - 1) * kResidualPercentiles.size();
    EXPECT_NEAR(layer.key_residuals[at], whole / 2, 1e-6);
    EXPECT_NEAR(layer.key_residuals[at + 3], 0.99 * whole, 1e-6);
    EXPECT_NEAR(layer.value_residuals[at], whole, 1e-6);
    EXPECT_NEAR(layer.value_residuals[at + 3], whole, 1e-6);
  }
}

TEST(Calibrate, TextIsCutToTheModelsContextAndToTheTokensAskedFor) {
  const auto engine = load("models/stories260K.gguf", 512);
  CalibrateOptions options;
  options.tokens = 1300;
  const auto calibration = calibrate_on_text(*engine, stories(), options);
  ASSERT_TRUE(calibration) << calibration.error().message;
  EXPECT_EQ(calibration->window, engine->info().context);
  EXPECT_EQ(calibration->skip, 32);
  EXPECT_EQ(calibration->tokens, 1300 - 3 * 32);  // 512 + 512 + 276
  EXPECT_FALSE(calibrate_on_text(*engine, "Once", {}));
  options.tokens = 10;
  EXPECT_FALSE(calibrate_on_text(*engine, stories(), options));
}

TEST(Calibrate, IsMadeOnceAndFoundByFingerprint) {
  const TemporaryFolder folder;
  const ScopedVariable home("XDG_CACHE_HOME", folder.path().c_str());
  const auto engine = load("models/stories260K.gguf", 512);
  CalibrateOptions options;
  options.tokens = 600;
  int asked = 0;
  const auto text = [&]() -> Result<std::string> {
    ++asked;
    return stories();
  };
  // Stopped before the end: nothing is left, not even a temporary file.
  std::atomic<bool> cancel{true};
  engine->set_cancel_flag(&cancel);
  const auto stopped = ensure_calibration(*engine, text, options);
  ASSERT_FALSE(stopped);
  EXPECT_EQ(stopped.error().code, ErrorCode::kCancelled) << stopped.error().message;
  EXPECT_TRUE(std::filesystem::is_empty(folder / "kvspan/calibration"));
  engine->set_cancel_flag(nullptr);

  const auto made = ensure_calibration(*engine, text, options);
  ASSERT_TRUE(made) << made.error().message;
  EXPECT_EQ(asked, 2);
  const auto found = ensure_calibration(*engine, text, options);
  ASSERT_TRUE(found) << found.error().message;
  EXPECT_EQ(asked, 2);
  const auto one = read_whole(engine->cache_shape(), *made);
  const auto other = read_whole(engine->cache_shape(), *found);
  ASSERT_TRUE(one && other);
  EXPECT_FALSE(one->layers[0].joint_moment.empty());
  EXPECT_EQ(other->layers[0].joint_moment, one->layers[0].joint_moment);
  EXPECT_EQ(other->layers[0].sample_rows, one->layers[0].sample_rows);
  const std::string path = calibration_path(*engine).value();
  EXPECT_EQ(path, folder / ("kvspan/calibration/" + engine->fingerprint() + ".gguf"));

  std::filesystem::resize_file(path, 1000);
  const auto damaged = ensure_calibration(*engine, text, options);
  ASSERT_FALSE(damaged);
  EXPECT_NE(damaged.error().message.find(path), std::string::npos) << damaged.error().message;
}

}  // namespace
}  // namespace kvspan::testing
