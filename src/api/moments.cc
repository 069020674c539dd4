// SPDX-License-Identifier: Apache-2.0
#include "kvspan/moments.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "api/attention_metrics.h"
#include "api/neighbour_moments.h"
#include "api/sample_residuals.h"
#include "base/fail.h"
#include "base/half.h"
#include "cache/calibration/array_sizes.h"
#include "cache/rope.h"
#include "linalg/moment_sum.h"

namespace kvspan {
namespace {

constexpr std::size_t kRowsPerItem = 32;

std::size_t at(std::int32_t n) {
  return static_cast<std::size_t>(n);
}

// Calls visit(i) for every i below `count`, shared out to the team, and waits for all.
template <class Visit>
void share_rows(Team& team, std::size_t count, const Visit& visit) {
  for (std::size_t item; (item = at(team.take())) * kRowsPerItem < count;) {
    const std::size_t begin = item * kRowsPerItem;
    for (std::size_t i = begin; i < std::min(count, begin + kRowsPerItem); ++i) visit(i);
  }
  team.barrier();
}

std::size_t key_width(const LayerShape& shape) {
  return at(shape.kv_heads) * at(shape.key_dim);
}
// Each query head starts at a multiple of 8 columns.
std::size_t query_width(const LayerShape& shape) {
  return at(shape.query_heads) * detail::padded(at(shape.key_dim));
}

// A panel for rows of the widest layer. Columns beyond a narrower layer's stay 0 only if they are
// written so, which place_row and place_queries do.
template <class Width>
detail::Panel panel_for(const CacheShape& shape, std::int32_t rows, Width width) {
  std::size_t widest = 0;
  for (const LayerShape& layer : shape.layers) widest = std::max(widest, width(layer));
  return detail::Panel(at(rows), spread_columns(widest));
}

double* put(const TensorView<const float, 3>& rows, std::size_t i, std::size_t padding,
            double* to) {
  for (std::size_t head = 0; head < rows.shape[1]; ++head) {
    const float* from = rows.row(i, head);
    for (std::size_t j = 0; j < rows.shape[2]; ++j) to[j] = from[j];
    std::fill(to + rows.shape[2], to + rows.shape[2] + padding, 0.0);
    to += rows.shape[2] + padding;
  }
  return to;
}

// The same of rows turned back to before RoPE: R(t)^-1 = Rot(-t) / magnitude, in f32.
double* put_unturned(const Rope& rope, std::int32_t position,
                     const TensorView<const float, 3>& rows, std::size_t i, std::size_t padding,
                     double* to) {
  const std::size_t pairs = rope.angles.size(), dim = rows.shape[2];
  std::vector<float> cosines(pairs), sines(pairs), row(dim);
  rope_turn(rope, -position, 1.0f / rope.magnitude, cosines.data(), sines.data());
  for (std::size_t head = 0; head < rows.shape[1]; ++head) {
    std::copy_n(rows.row(i, head), dim, row.begin());
    apply_turn(rope, cosines.data(), sines.data(), row.data());
    to = std::copy(row.begin(), row.end(), to);
    to = std::fill_n(to, padding, 0.0);
  }
  return to;
}

void zero_to_boundary(double* row, double* end) {
  const auto used = static_cast<std::size_t>(end - row);
  std::fill(end, row + detail::padded(used), 0.0);
}

// What each number of the residual stream counts beside the others: squares of the reader's gain, so that all together
// count as much as without it.
std::vector<double> reading(const OutputWeights& output) {
  const std::size_t hidden = output.rows.shape[0];
  std::vector<double> out(hidden, 1.0);
  if (output.reader.empty()) return out;
  double all = 0.0, read = 0.0;
  for (std::size_t i = 0; i < hidden; ++i) {
    const double gain = output.gain.empty() ? 1.0 : output.gain[i];
    double square = 0.0;
    for (std::size_t j = 0; j < output.rows.shape[1]; ++j) square += std::pow(gain * output.rows.row(i)[j], 2.0);
    out[i] = double{output.reader[i]} * double{output.reader[i]};
    all += square;
    read += out[i] * square;
  }
  for (double& x : out) x = read > 0.0 ? x * all / read : 1.0;
  return out;
}

// Wo_g' diag(gain^2 reading) Wo_g of every query head: [query_heads][value_dim^2].
std::vector<float> output_products(const LayerShape& shape, const OutputWeights& output) {
  const std::size_t heads = at(shape.query_heads), dim = at(shape.value_dim);
  const std::size_t columns = detail::padded(dim), hidden = output.rows.shape[0];
  detail::Panel rows(hidden, spread_columns(heads * columns));
  const std::vector<double> read = reading(output);
  for (std::size_t i = 0; i < hidden; ++i) {
    const double gain = std::sqrt(read[i]) * (output.gain.empty() ? 1.0 : output.gain[i]);
    const float* from = output.rows.row(i);
    for (std::size_t h = 0; h < heads; ++h) {
      for (std::size_t j = 0; j < dim; ++j) rows(i, h * columns + j) = gain * from[h * dim + j];
    }
  }
  std::vector<float> products;
  for (std::size_t head = 0; head < heads; ++head) {
    MomentSum sum(dim);
    for (std::size_t strip = 0; strip < sum.strips(); ++strip) sum.add(strip, rows, head * columns, 0, hidden);
    const std::vector<float> one = sum.moment(1.0);
    products.insert(products.end(), one.begin(), one.end());
  }
  return products;
}

Status check_options(const CacheShape& shape, const MomentOptions& options) {
  if (shape.layers.empty()) return fail(ErrorCode::kInvalidArgument, "the shape has no layers");
  for (const auto& [name, number] :
       {std::pair("window", std::int64_t{options.window}), std::pair("tokens", options.tokens),
        std::pair("samples", options.samples), std::pair("block", std::int64_t{options.block})}) {
    if (number < 1) {
      return fail(ErrorCode::kInvalidArgument, "{} is {}; allowed: 1 or more", name, number);
    }
  }
  if (options.neighbours < 0 || options.neighbours > kMostNeighbours) {
    return fail(ErrorCode::kInvalidArgument, "neighbours is {}; allowed: 0 to {}",
                options.neighbours, kMostNeighbours);
  }
  if (options.skip >= 0 && options.skip < options.window) return {};
  return fail(ErrorCode::kInvalidArgument, "skip is {}; allowed: 0 to {}, below the window",
              options.skip, options.window - 1);
}

// [positions, heads, dim]
Status check_rows(const char* what, const TensorView<const float, 3>& rows, std::size_t n,
                  std::int32_t heads, std::int32_t dim, std::int32_t block) {
  if (n > at(block)) {
    return fail(ErrorCode::kInvalidArgument, "{} {} in one call; allowed: up to {}", n, what,
                block);
  }
  if (rows.shape[0] == n && rows.shape[1] == at(heads) && rows.shape[2] == at(dim)) return {};
  return fail(ErrorCode::kInvalidArgument,
              "{} are [{}, {}, {}]; allowed: [{}, {}, {}], one position each", what, rows.shape[0],
              rows.shape[1], rows.shape[2], n, heads, dim);
}

}  // namespace

struct MomentCollector::State {
  struct Layer {
    Layer(const LayerShape& shape, const MomentOptions& options);
    MomentSum joint, rotated_keys;
    AttentionMetrics metrics;
    std::vector<MomentSum> queries, raw_queries;  // one for each KV head; raw: none without RoPE
    std::vector<float> sample_rows;
    std::int64_t counted = 0;          // tokens
    std::int64_t counted_queries = 0;  // their queries
    double energy = 0.0;               // sum of |x|^2
    double inverse = 0.0;              // sum of 1 / (mean(y^2) + epsilon)
    std::int64_t inverse_rows = 0;
    float epsilon = 0.0f;
    bool normed = false;  // a norm follows the output matrix
  };

  State(const CacheShape& of, const MomentOptions& given);
  std::size_t first_counted(std::span<const std::int32_t> positions) const;
  void place_row(std::size_t layer, const KvRows& rows, std::size_t i, std::size_t to);
  void keep_sample(std::size_t layer, std::int64_t counted, std::size_t row);
  void place_queries(const LayerShape& layer, const Queries& queries, std::size_t i,
                     std::size_t to);
  Status check_layer(int index) const;
  LayerCalibration moments_of(std::size_t index) const;

  CacheShape shape_;
  MomentOptions options_;
  std::int64_t stride_;  // every stride-th counted token is a sample
  std::vector<Layer> layers_;
  std::vector<std::int32_t> sample_positions_;
  NeighbourMoments neighbours_;                           // holds the rows z of the block at hand
  detail::Panel key_rows_, query_rows_, raw_query_rows_;  // of the block at hand
};

MomentCollector::State::Layer::Layer(const LayerShape& shape, const MomentOptions& options)
    : joint(joint_width(shape)),
      rotated_keys(key_width(shape)),
      metrics(shape, options.window, options.skip, options.block) {
  for (std::int32_t head = 0; head < shape.kv_heads; ++head) {
    queries.emplace_back(at(shape.key_dim));
    if (!shape.rope.angles.empty()) raw_queries.emplace_back(at(shape.key_dim));
  }
}

MomentCollector::State::State(const CacheShape& of, const MomentOptions& given)
    : shape_(of),
      options_(given),
      stride_(std::max<std::int64_t>(1, given.tokens / given.samples) | 1),
      neighbours_(of, given.neighbours, given.block),
      key_rows_(panel_for(of, given.block, key_width)),
      query_rows_(panel_for(of, given.block, query_width)),
      raw_query_rows_(panel_for(of, given.block, query_width)) {
  // The odd stride may be one below tokens / samples; the surplus is then not kept.
  const std::int64_t samples = std::min(given.samples, (given.tokens + stride_ - 1) / stride_);
  for (const LayerShape& layer : shape_.layers) {
    layers_.emplace_back(layer, given);
    layers_.back().sample_rows.resize(static_cast<std::size_t>(samples) * joint_width(layer));
  }
  sample_positions_.resize(static_cast<std::size_t>(samples));
}

std::size_t MomentCollector::State::first_counted(std::span<const std::int32_t> positions) const {
  return static_cast<std::size_t>(
      std::lower_bound(positions.begin(), positions.end(), options_.skip) - positions.begin());
}

void MomentCollector::State::place_row(std::size_t layer, const KvRows& rows, std::size_t i,
                                       std::size_t to) {
  double* joint = neighbours_.rows(layer).row(to);
  const Rope& rope = shape_.layers[layer].rope;
  double* after_keys = put_unturned(rope, rows.positions[i], rows.keys, i, 0, joint);
  zero_to_boundary(joint, put(rows.values, i, 0, after_keys));
  double* keys = key_rows_.row(to);
  zero_to_boundary(keys, put(rows.keys, i, 0, keys));
}

void MomentCollector::State::keep_sample(std::size_t layer, std::int64_t counted, std::size_t row) {
  if (counted % stride_ != 0) return;
  const auto index = static_cast<std::size_t>(counted / stride_);
  if (index >= sample_positions_.size()) return;
  const std::size_t width = joint_width(shape_.layers[layer]);
  const double* from = neighbours_.rows(layer).row(row);
  float* to = layers_[layer].sample_rows.data() + index * width;
  for (std::size_t j = 0; j < width; ++j) to[j] = to_float(to_half(static_cast<float>(from[j])));
}

void MomentCollector::State::place_queries(const LayerShape& layer, const Queries& queries,
                                           std::size_t i, std::size_t to) {
  const std::size_t dim = at(layer.key_dim), padding = detail::padded(dim) - dim;
  put(queries.rows, i, padding, query_rows_.row(to));
  if (layer.rope.angles.empty()) return;
  put_unturned(layer.rope, queries.positions[i], queries.rows, i, padding, raw_query_rows_.row(to));
}

Status MomentCollector::State::check_layer(int index) const {
  if (index >= 0 && at(index) < layers_.size()) return {};
  return fail(ErrorCode::kInvalidArgument, "layer {}; allowed: 0 to {}", index, layers_.size() - 1);
}

MomentCollector::MomentCollector(std::unique_ptr<State> state) : state_(std::move(state)) {}
MomentCollector::MomentCollector(MomentCollector&&) noexcept = default;
MomentCollector& MomentCollector::operator=(MomentCollector&&) noexcept = default;
MomentCollector::~MomentCollector() = default;

Result<MomentCollector> MomentCollector::create(const CacheShape& shape,
                                                const MomentOptions& options) {
  KVSPAN_CHECK_OK(check_options(shape, options));
  return MomentCollector(std::make_unique<State>(shape, options));
}

Status MomentCollector::set_output(int layer, const OutputWeights& weights) {
  KVSPAN_CHECK_OK(state_->check_layer(layer));
  const LayerShape& shape = state_->shape_.layers[at(layer)];
  const std::size_t columns = at(shape.query_heads) * at(shape.value_dim);
  const std::size_t hidden = weights.rows.empty() ? 0 : weights.rows.shape[0];
  if (hidden > 0 && weights.rows.shape[1] != columns) {
    return fail(ErrorCode::kInvalidArgument,
                "layer {}: output weights of {} columns; allowed: query heads x value_dim = {}",
                layer, weights.rows.shape[1], columns);
  }
  if (hidden > 0 && !weights.gain.empty() && weights.gain.size() != hidden) {
    return fail(ErrorCode::kInvalidArgument, "layer {}: {} gains; allowed: none or {}", layer,
                weights.gain.size(), hidden);
  }
  if (hidden > 0 && !weights.reader.empty() && weights.reader.size() != hidden) {
    return fail(ErrorCode::kInvalidArgument, "layer {}: {} gains of the reader; allowed: none or {}", layer,
                weights.reader.size(), hidden);
  }
  State::Layer& to = state_->layers_[at(layer)];
  // Where no single matrix follows attention (MLA), all directions count alike.
  to.metrics.set_output(hidden > 0 ? output_products(shape, weights) : std::vector<float>());
  to.normed = !weights.gain.empty();
  to.epsilon = weights.epsilon;
  return {};
}

Status MomentCollector::add_rows(int index, const KvRows& rows, Team& team) {
  State& s = *state_;
  KVSPAN_CHECK_OK(s.check_layer(index));
  const LayerShape& shape = s.shape_.layers[at(index)];
  const std::size_t n = rows.positions.size();
  KVSPAN_CHECK_OK(
      check_rows("keys", rows.keys, n, shape.kv_heads, shape.key_dim, s.options_.block));
  KVSPAN_CHECK_OK(
      check_rows("values", rows.values, n, shape.kv_heads, shape.value_dim, s.options_.block));
  KVSPAN_CHECK_OK(s.neighbours_.check(at(index), rows.positions));
  State::Layer& layer = s.layers_[at(index)];
  const std::size_t skipped = s.first_counted(rows.positions), count = n - skipped;
  share_rows(team, count, [&](std::size_t i) {
    s.place_row(at(index), rows, skipped + i, i);
    const std::int64_t counted = layer.counted + static_cast<std::int64_t>(i);
    s.keep_sample(at(index), counted, i);
    // Every layer sees the same positions; layer 0 notes them.
    const auto sample = static_cast<std::size_t>(counted / s.stride_);
    if (index == 0 && counted % s.stride_ == 0 && sample < s.sample_positions_.size()) {
      s.sample_positions_[sample] = rows.positions[skipped + i];
    }
  });
  // Between the barriers: all have read what this changes, and the next call finds it changed.
  if (team.leader()) {
    layer.counted += static_cast<std::int64_t>(count);
    s.neighbours_.came(at(index), rows.positions);
  }
  const detail::Panel& joint_rows = s.neighbours_.rows(at(index));
  const std::size_t joint = layer.joint.strips(), keys = layer.rotated_keys.strips();
  const std::size_t all = joint + keys + s.neighbours_.items(at(index));
  for (std::size_t item; (item = at(team.take())) < all;) {
    if (item < joint) {
      layer.joint.add(item, joint_rows, 0, 0, count);
    } else if (item < joint + keys) {
      layer.rotated_keys.add(item - joint, s.key_rows_, 0, 0, count);
    } else {
      s.neighbours_.add(item - joint - keys, at(index), count);
    }
  }
  team.barrier();
  layer.metrics.add_rows(rows, team);
  return {};
}

Status MomentCollector::add_queries(int index, const Queries& queries, Team& team) {
  State& s = *state_;
  KVSPAN_CHECK_OK(s.check_layer(index));
  const LayerShape& shape = s.shape_.layers[at(index)];
  const std::size_t n = queries.positions.size();
  KVSPAN_CHECK_OK(
      check_rows("queries", queries.rows, n, shape.query_heads, shape.key_dim, s.options_.block));
  State::Layer& layer = s.layers_[at(index)];
  const std::size_t skipped = s.first_counted(queries.positions), count = n - skipped;
  share_rows(team, count, [&](std::size_t i) { s.place_queries(shape, queries, skipped + i, i); });
  const std::size_t strips = layer.queries.front().strips(), heads = layer.queries.size();
  const std::size_t group = at(shape.query_heads) / heads;
  const std::size_t columns = detail::padded(at(shape.key_dim));
  const std::size_t kinds = layer.raw_queries.empty() ? 1 : 2;
  for (std::size_t item; (item = at(team.take())) < kinds * heads * strips;) {
    const std::size_t strip = item % strips, head = item / strips % heads;
    const bool raw = item / strips / heads == 1;
    MomentSum& sum = raw ? layer.raw_queries[head] : layer.queries[head];
    for (std::size_t g = 0; g < group; ++g) {
      sum.add(strip, raw ? s.raw_query_rows_ : s.query_rows_, (head * group + g) * columns, 0,
              count);
    }
  }
  team.barrier();
  layer.metrics.add_queries(queries, layer.counted_queries, team);
  if (team.leader()) layer.counted_queries += static_cast<std::int64_t>(count);
  team.barrier();  // the next call reads the number
  return {};
}

void MomentCollector::add_layer_input(int index, TensorView<const float, 2> rows,
                                      std::span<const std::int32_t> positions) {
  if (!state_->check_layer(index)) return;
  State::Layer& layer = state_->layers_[at(index)];
  for (std::size_t i = state_->first_counted(positions); i < rows.shape[0]; ++i) {
    const float* row = rows.row(i);
    for (std::size_t j = 0; j < rows.shape[1]; ++j) layer.energy += double{row[j]} * row[j];
  }
}

void MomentCollector::add_post_norm_input(int index, TensorView<const float, 2> rows,
                                          std::span<const std::int32_t> positions) {
  if (!state_->check_layer(index)) return;
  State::Layer& layer = state_->layers_[at(index)];
  for (std::size_t i = state_->first_counted(positions); i < rows.shape[0]; ++i) {
    const float* row = rows.row(i);
    double square = 0.0;
    for (std::size_t j = 0; j < rows.shape[1]; ++j) square += double{row[j]} * row[j];
    layer.inverse += 1.0 / (square / static_cast<double>(rows.shape[1]) + layer.epsilon);
    ++layer.inverse_rows;
  }
}

LayerCalibration MomentCollector::State::moments_of(std::size_t index) const {
  const Layer& layer = layers_[index];
  const LayerShape& shape = shape_.layers[index];
  const auto count = static_cast<double>(layer.counted);
  LayerCalibration to;
  to.key_mean = layer.joint.mean(count);
  const auto values = to.key_mean.begin() + static_cast<std::ptrdiff_t>(key_width(shape));
  to.value_mean.assign(values, to.key_mean.end());
  to.key_mean.erase(values, to.key_mean.end());
  to.joint_moment = layer.joint.moment(count);
  to.cross_moments = neighbours_.moments(index, count);
  to.rotated_key_mean = layer.rotated_keys.mean(count);
  to.rotated_key_moment = layer.rotated_keys.moment(count);
  const double group = shape.query_heads / shape.kv_heads;
  const auto gather = [&](const std::vector<MomentSum>& heads) {
    std::vector<float> all;
    for (const MomentSum& head : heads) {
      const std::vector<float> moment =
          head.moment(static_cast<double>(layer.counted_queries) * group);
      all.insert(all.end(), moment.begin(), moment.end());
    }
    return all;
  };
  to.query_moment = gather(layer.queries);
  to.raw_query_moment = layer.raw_queries.empty() ? to.query_moment : gather(layer.raw_queries);
  to.residual_energy = layer.energy / count;
  to.sample_rows = layer.sample_rows;
  return to;
}

Result<Calibration> MomentCollector::finish(const std::string& model,
                                            const std::string& fingerprint) const {
  const State& s = *state_;
  Calibration out;
  out.model = model;
  out.fingerprint = fingerprint;
  out.tokens = s.layers_.front().counted;
  out.window = s.options_.window;
  out.skip = s.options_.skip;
  out.neighbours = s.options_.neighbours;
  out.sample_positions = s.sample_positions_;
  for (std::size_t i = 0; i < s.layers_.size(); ++i) {
    const State::Layer& layer = s.layers_[i];
    if (layer.counted != s.options_.tokens || layer.counted_queries == 0) {
      return fail(ErrorCode::kInvalidArgument,
                  "layer {} has seen rows of {} tokens and queries of {}; allowed: {} rows, as the "
                  "options said, and some queries",
                  i, layer.counted, layer.counted_queries, s.options_.tokens);
    }
    out.layers.push_back(s.moments_of(i));
    out.ropes.push_back(s.shape_.layers[i].rope);
  }
  double energy = 0.0, seen = 0.0;
  for (const LayerCalibration& layer : out.layers) {
    energy += layer.residual_energy;
    seen += layer.residual_energy > 0.0;
  }
  for (std::size_t i = 0; i < out.layers.size(); ++i) {
    LayerCalibration& to = out.layers[i];
    if (to.residual_energy == 0.0) to.residual_energy = seen > 0.0 ? energy / seen : 1.0;
    const State::Layer& layer = s.layers_[i];
    const double inverse =
        layer.inverse / static_cast<double>(std::max<std::int64_t>(1, layer.inverse_rows));
    const double factor = (layer.normed ? inverse : 1.0) / to.residual_energy;
    to.output_metric = layer.metrics.output_metric(factor);
    if (layer.metrics.empty()) {
      // Windows of a few tokens: what is known of queries and output without attention.
      to.key_metric = to.query_moment;
      to.value_metric = to.output_metric;
    } else {
      to.key_metric = layer.metrics.key_metric(factor);
      to.value_metric = layer.metrics.value_metric(factor);
    }
    KVSPAN_CHECK_OK(add_sample_residuals(s.shape_.layers[i], out.sample_positions, to));
  }
  KVSPAN_CHECK_OK(check_calibration(s.shape_, out));
  return out;
}

}  // namespace kvspan
