// SPDX-License-Identifier: Apache-2.0
#include "method/bands/learn_bands.h"

#include <algorithm>
#include <utility>

#include "base/fail.h"
#include "cache/rope.h"

namespace kvspan {
namespace {

// Rows that steps are fitted to: enough for two digits of a step.
constexpr std::size_t kMostLearnSamples = 512;
// n rows of D numbers leave the weakest directions too weak: D / n of this share of the mean
// variance is added to all. With 48 to 96 rows of real models' activations it takes about a fifth
// off the error; from 1,000 rows on it changes nothing.
constexpr double kRidge = 0.1;

// Mean and second moment of rows [n, width], both about the origin.
class Sums {
 public:
  explicit Sums(std::size_t width) : width_(width), first_(width), second_(width * width) {}

  void add(const float* row) {
    for (std::size_t i = 0; i < width_; ++i) {
      const double x = row[i];
      first_[i] += x;
      double* to = second_.data() + i * width_;
      for (std::size_t j = i; j < width_; ++j) to[j] += x * double{row[j]};
    }
    ++rows_;
  }
  std::vector<float> mean(std::size_t from, std::size_t n) const {
    std::vector<float> out(n);
    for (std::size_t i = 0; i < n; ++i) out[i] = static_cast<float>(first_[from + i] / count());
    return out;
  }
  std::vector<float> moment() const {
    std::vector<float> out(width_ * width_);
    for (std::size_t i = 0; i < width_; ++i) {
      for (std::size_t j = i; j < width_; ++j) {
        out[i * width_ + j] = out[j * width_ + i] =
            static_cast<float>(second_[i * width_ + j] / count());
      }
    }
    return out;
  }

 private:
  double count() const { return static_cast<double>(rows_); }

  std::size_t width_, rows_ = 0;
  std::vector<double> first_, second_;
};

// Adds a share of their mean to the variances of one side, numbers first .. first + mean.size() - 1
// of the moment's.
void add_ridge(std::vector<float>& moment, std::size_t width, std::size_t first,
               const std::vector<float>& mean, double share) {
  double sum = 0.0;
  for (std::size_t i = 0; i < mean.size(); ++i) {
    sum += moment[(first + i) * (width + 1)] - double{mean[i]} * double{mean[i]};
  }
  const double ridge = share * std::max(sum, 0.0) / static_cast<double>(mean.size());
  for (std::size_t i = 0; i < mean.size(); ++i) {
    moment[(first + i) * (width + 1)] += static_cast<float>(ridge);
  }
}

// What design reads of a calibration.
Calibration calibration_of(const LayerShape& layer, const RowBlock& rows, std::size_t first,
                           const BandsOptions& options) {
  const auto heads = static_cast<std::size_t>(rows.heads);
  const auto dk = static_cast<std::size_t>(rows.key_dim);
  const std::size_t keys = heads * dk, values = heads * static_cast<std::size_t>(rows.value_dim);
  const bool after_rope = options.anchor == 0 && !options.before_rope;
  const std::size_t step = (rows.size() - first + kMostLearnSamples - 1) / kMostLearnSamples;
  Sums joint(keys + values), rotated(after_rope ? keys : 0);
  std::vector<float> z(keys + values);
  Calibration calibration;
  LayerCalibration learnt;
  for (std::size_t t = first; t < rows.size(); ++t) {
    const float* key = rows.keys.data() + t * keys;
    std::copy_n(key, keys, z.data());
    std::copy_n(rows.values.data() + t * values, values, z.data() + keys);
    for (std::size_t h = 0; h < heads; ++h) {
      rope_unrotate(layer.rope, rows.positions[t], z.data() + h * dk);
    }
    joint.add(z.data());
    if (after_rope) rotated.add(key);
    if ((t - first) % step != 0) continue;
    calibration.sample_positions.push_back(rows.positions[t]);
    learnt.sample_rows.insert(learnt.sample_rows.end(), z.begin(), z.end());
  }
  learnt.key_mean = joint.mean(0, keys);
  learnt.value_mean = joint.mean(keys, values);
  learnt.joint_moment = joint.moment();
  const double share =
      kRidge * static_cast<double>(keys + values) / static_cast<double>(rows.size() - first);
  add_ridge(learnt.joint_moment, keys + values, 0, learnt.key_mean, share);
  add_ridge(learnt.joint_moment, keys + values, keys, learnt.value_mean, share);
  if (after_rope) {
    learnt.rotated_key_mean = rotated.mean(0, keys);
    learnt.rotated_key_moment = rotated.moment();
    add_ridge(learnt.rotated_key_moment, keys, 0, learnt.rotated_key_mean, share);
  }
  calibration.layers.push_back(std::move(learnt));
  return calibration;
}

}  // namespace

Result<GroupBands> learn_bands(const LayerShape& layer, const RowBlock& rows,
                               const BandsOptions& options, const std::shared_ptr<Ledger>& ledger) {
  const auto first = static_cast<std::size_t>(
      std::lower_bound(rows.positions.begin(), rows.positions.end(), kFirstLearnt) -
      rows.positions.begin());
  if (first == rows.size()) {
    return fail(ErrorCode::kInvalidArgument,
                "bands: no token at position {} or later to learn from", kFirstLearnt);
  }
  CacheShape shape;
  shape.layers.push_back(layer);
  shape.layers[0].kv_heads = rows.heads;
  const Calibration calibration = calibration_of(layer, rows, first, options);
  KVSPAN_TRY(auto designed, design_bands(shape, calibration, {{{0, rows.heads}}}, options, ledger));
  return std::move(designed[0][0]);
}

}  // namespace kvspan
