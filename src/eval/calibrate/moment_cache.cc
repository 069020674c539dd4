// SPDX-License-Identifier: Apache-2.0
#include "eval/calibrate/moment_cache.h"

#include <algorithm>

#include "base/expect.h"
#include "base/fail.h"
#include "base/half.h"
#include "cache/rope.h"

namespace kvspan {
namespace {

constexpr std::size_t kRowsPerItem = 32;

std::size_t at(std::int32_t n) {
  return static_cast<std::size_t>(n);
}
std::size_t joint_width(const LayerShape& shape) {
  return at(shape.kv_heads) * at(shape.key_dim + shape.value_dim);
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

}  // namespace

MomentCache::Layer::Layer(const LayerShape& shape)
    : joint(joint_width(shape)), rotated_keys(key_width(shape)) {
  for (std::int32_t head = 0; head < shape.kv_heads; ++head) {
    queries.emplace_back(at(shape.key_dim));
    if (!shape.rope.angles.empty()) raw_queries.emplace_back(at(shape.key_dim));
  }
}

MomentCache::MomentCache(std::unique_ptr<KvCache> inner, const MomentOptions& options)
    : WrappedCache(std::move(inner)),
      options_(options),
      stride_(
          std::max<std::int64_t>(1, options.tokens / std::max<std::int64_t>(1, options.samples)) |
          1),
      joint_rows_(panel_for(shape(), options.block, joint_width)),
      key_rows_(panel_for(shape(), options.block, key_width)),
      query_rows_(panel_for(shape(), options.block, query_width)),
      raw_query_rows_(panel_for(shape(), options.block, query_width)) {
  // The odd stride may be one below tokens / samples; the surplus is then not kept.
  const std::int64_t samples = std::min(options.samples, (options.tokens + stride_ - 1) / stride_);
  for (const LayerShape& shape : shape().layers) {
    layers_.emplace_back(shape);
    layers_.back().sample_rows.resize(static_cast<std::size_t>(samples) * joint_width(shape));
  }
  sample_positions_.resize(static_cast<std::size_t>(samples));
}

std::size_t MomentCache::first_counted(std::span<const std::int32_t> positions) const {
  return static_cast<std::size_t>(
      std::lower_bound(positions.begin(), positions.end(), options_.skip) - positions.begin());
}

void MomentCache::place_row(const Rope& rope, const KvRows& rows, std::size_t i, std::size_t to) {
  double* joint = joint_rows_.row(to);
  double* after_keys = put_unturned(rope, rows.positions[i], rows.keys, i, 0, joint);
  zero_to_boundary(joint, put(rows.values, i, 0, after_keys));
  double* keys = key_rows_.row(to);
  zero_to_boundary(keys, put(rows.keys, i, 0, keys));
}

void MomentCache::keep_sample(Layer& layer, std::int64_t counted, std::size_t row) const {
  if (counted % stride_ != 0) return;
  const auto index = static_cast<std::size_t>(counted / stride_);
  if (index >= sample_positions_.size()) return;
  const std::size_t width = layer.joint.width();
  const double* from = joint_rows_.row(row);
  float* to = layer.sample_rows.data() + index * width;
  for (std::size_t j = 0; j < width; ++j) to[j] = to_float(to_half(static_cast<float>(from[j])));
}

Status MomentCache::append(int index, const KvRows& rows, Team& team) {
  KVSPAN_EXPECT(rows.positions.size() <= at(options_.block), "rows of at most one block");
  if (Status status = inner().append(index, rows, team); !status) return status;
  const Rope& rope = inner().shape().layers[at(index)].rope;
  Layer& layer = layers_[at(index)];
  const std::size_t skipped = first_counted(rows.positions);
  const std::size_t count = rows.positions.size() - skipped;
  for (std::size_t item; (item = at(team.take())) * kRowsPerItem < count;) {
    const std::size_t begin = item * kRowsPerItem;
    for (std::size_t i = begin; i < std::min(count, begin + kRowsPerItem); ++i) {
      place_row(rope, rows, skipped + i, i);
      const std::int64_t counted = layer.counted + static_cast<std::int64_t>(i);
      keep_sample(layer, counted, i);
      // Every layer sees the same positions; layer 0 notes them.
      const auto sample = static_cast<std::size_t>(counted / stride_);
      if (index == 0 && counted % stride_ == 0 && sample < sample_positions_.size()) {
        sample_positions_[sample] = rows.positions[skipped + i];
      }
    }
  }
  team.barrier();
  const std::size_t joint = layer.joint.strips(), all = joint + layer.rotated_keys.strips();
  for (std::size_t item; (item = at(team.take())) < all;) {
    if (item < joint) {
      layer.joint.add(item, joint_rows_, 0, 0, count);
    } else {
      layer.rotated_keys.add(item - joint, key_rows_, 0, 0, count);
    }
  }
  team.barrier();
  if (team.leader()) layer.counted += static_cast<std::int64_t>(count);
  return {};
}

void MomentCache::place_queries(const LayerShape& shape, const Queries& queries, std::size_t i,
                                std::size_t to) {
  const std::size_t dim = at(shape.key_dim), padding = detail::padded(dim) - dim;
  put(queries.rows, i, padding, query_rows_.row(to));
  if (shape.rope.angles.empty()) return;
  put_unturned(shape.rope, queries.positions[i], queries.rows, i, padding, raw_query_rows_.row(to));
}

Status MomentCache::attend(int index, const Queries& queries, TensorView<float, 3> out,
                           AttentionScratch& scratch, Team& team) {
  if (Status status = inner().attend(index, queries, out, scratch, team); !status) return status;
  const LayerShape& shape = inner().shape().layers[at(index)];
  Layer& layer = layers_[at(index)];
  const std::size_t skipped = first_counted(queries.positions);
  const std::size_t count = queries.positions.size() - skipped;
  for (std::size_t item; (item = at(team.take())) * kRowsPerItem < count;) {
    const std::size_t begin = item * kRowsPerItem;
    for (std::size_t i = begin; i < std::min(count, begin + kRowsPerItem); ++i) {
      place_queries(shape, queries, skipped + i, i);
    }
  }
  team.barrier();
  const std::size_t strips = layer.queries.front().strips(), heads = layer.queries.size();
  const std::size_t group = at(shape.query_heads) / heads;
  const std::size_t columns = detail::padded(at(shape.key_dim));
  const std::size_t kinds = layer.raw_queries.empty() ? 1 : 2;
  for (std::size_t item; (item = at(team.take())) < kinds * heads * strips;) {
    const std::size_t strip = item % strips, head = item / strips % heads;
    const bool raw = item / strips / heads == 1;
    MomentSum& sum = raw ? layer.raw_queries[head] : layer.queries[head];
    for (std::size_t g = 0; g < group; ++g) {
      sum.add(strip, raw ? raw_query_rows_ : query_rows_, (head * group + g) * columns, 0, count);
    }
  }
  team.barrier();
  return {};
}

Result<std::unique_ptr<KvCache>> MomentCache::fork() const {
  return fail(ErrorCode::kUnsupported, "a cache that sums up moments cannot be forked");
}

void MomentCache::on_layer_input(int index, TensorView<const float, 2> rows,
                                 std::span<const std::int32_t> positions) {
  Layer& layer = layers_[at(index)];
  for (std::size_t i = first_counted(positions); i < rows.shape[0]; ++i) {
    const float* row = rows.row(i);
    for (std::size_t j = 0; j < rows.shape[1]; ++j) layer.energy += double{row[j]} * row[j];
  }
}

void MomentCache::on_post_norm_input(int index, TensorView<const float, 2> rows,
                                     std::span<const std::int32_t> positions) {
  Layer& layer = layers_[at(index)];
  for (std::size_t i = first_counted(positions); i < rows.shape[0]; ++i) {
    const float* row = rows.row(i);
    double square = 0.0;
    for (std::size_t j = 0; j < rows.shape[1]; ++j) square += double{row[j]} * row[j];
    layer.inverse += 1.0 / (square / static_cast<double>(rows.shape[1]) + layer.epsilon);
    ++layer.inverse_rows;
  }
}

std::vector<double> MomentCache::inverse_post_norm() const {
  std::vector<double> out;
  for (const Layer& layer : layers_) {
    out.push_back(layer.inverse / static_cast<double>(std::max<std::int64_t>(1, layer.inverse_rows)));
  }
  return out;
}

Calibration MomentCache::moments() const {
  Calibration out;
  out.tokens = layers_.front().counted;
  out.window = options_.window;
  out.skip = options_.skip;
  out.sample_positions = sample_positions_;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const Layer& layer = layers_[i];
    const LayerShape& shape = inner().shape().layers[i];
    const auto count = static_cast<double>(layer.counted);
    LayerCalibration to;
    to.key_mean = layer.joint.mean(count);
    const auto values = to.key_mean.begin() + static_cast<std::ptrdiff_t>(key_width(shape));
    to.value_mean.assign(values, to.key_mean.end());
    to.key_mean.erase(values, to.key_mean.end());
    to.joint_moment = layer.joint.moment(count);
    to.rotated_key_mean = layer.rotated_keys.mean(count);
    to.rotated_key_moment = layer.rotated_keys.moment(count);
    const double group = shape.query_heads / shape.kv_heads;
    const auto gather = [&](const std::vector<MomentSum>& heads) {
      std::vector<float> all;
      for (const MomentSum& head : heads) {
        const std::vector<float> moment = head.moment(count * group);
        all.insert(all.end(), moment.begin(), moment.end());
      }
      return all;
    };
    to.query_moment = gather(layer.queries);
    to.raw_query_moment = layer.raw_queries.empty() ? to.query_moment : gather(layer.raw_queries);
    to.residual_energy = layer.energy / count;
    to.sample_rows = layer.sample_rows;
    out.layers.push_back(std::move(to));
  }
  return out;
}

}  // namespace kvspan
