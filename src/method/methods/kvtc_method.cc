// SPDX-License-Identifier: Apache-2.0
// kvtc: transform coding (Staniszewski and Lancucki 2025, arXiv 2511.01815). Keys before RoPE of
// all heads of a layer, and values likewise, as principal components about the mean of a
// calibration; neighbouring components form groups of 1, 16, 64, 256 or 1024 with 0, 2, 4 or 8
// bits, chosen by dynamic programming for the least squared error on the calibration's sample rows;
// each token has a scale and an offset for each group. Rows are rebuilt to be read. Beside the
// paper: a layer at a time, 8 bits are whole numbers where that has FP8, and nothing packs the
// codes further, so that every token can be read where it is.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "base/fail.h"
#include "linalg/symmetric_eigen.h"
#include "method/methods/prepare_subspace.h"
#include "method/prepare_parts.h"
#include "recipe/common_keys.h"
#include "recipe/recipe.h"

namespace kvspan {
namespace {

using namespace detail;

constexpr std::array<KeyDeclaration, 4> kKvtcKeys{
    number("bits", "2", 0.05, 8.0, "bits of a number, scales and offsets of groups included"),
    sink_key("4"), recent_key("128"), kCertify};
constexpr std::int32_t kKvtcUnit = 16;
constexpr std::array<std::size_t, 5> kGroupSizes{1, 16, 64, 256, 1024};
constexpr std::array<int, 4> kGroupBits{0, 2, 4, 8};
constexpr std::size_t kGroupOverhead = 32;  // bits of scale and offset
// Numbers that are quantized in trial for one side of a layer. Wide layers use fewer sample rows.
constexpr std::size_t kMostTrials = 30'000'000;

// Principal components of one side of a layer.
struct Components {
  std::vector<float> mean;  // [D]
  Matrix basis;             // [D, D], the strongest first
  Matrix samples;           // [n, D], the calibration's rows in it
};

// A direction's sign is free, and decides what is least and largest in a group: its largest number
// is made positive.
Result<Matrix> principal_rows(const MatrixD& covariance) {
  const std::size_t d = covariance.rows();
  KVSPAN_TRY(const SymmetricEigen eigen, symmetric_eigen(covariance.view()));
  Matrix rows(d, d);
  for (std::size_t k = 0; k < d; ++k) {
    const double* u = eigen.vectors.row(k);
    const double largest =
        *std::max_element(u, u + d, [](double a, double b) { return std::abs(a) < std::abs(b); });
    for (std::size_t j = 0; j < d; ++j) {
      rows(k, j) = static_cast<float>(largest < 0.0 ? -u[j] : u[j]);
    }
  }
  return rows;
}

std::size_t trials_of(std::size_t width) {
  std::size_t numbers = 0;
  for (const std::size_t size : kGroupSizes) numbers += size <= width ? size : 0;
  return width * numbers * (kGroupBits.size() - 1);
}

Result<Components> components_of(const LayerShape& shape, const LayerCalibration& learnt,
                                 bool keys) {
  const auto key_width = static_cast<std::size_t>(shape.kv_heads * shape.key_dim);
  const auto value_width = static_cast<std::size_t>(shape.kv_heads * shape.value_dim);
  const std::size_t width = keys ? key_width : value_width, all = key_width + value_width;
  const std::size_t first = keys ? 0 : key_width;
  Components out;
  out.mean = keys ? learnt.key_mean : learnt.value_mean;
  MatrixD covariance(width, width);
  for (std::size_t i = 0; i < width; ++i) {
    for (std::size_t j = 0; j < width; ++j) {
      covariance(i, j) = double{learnt.joint_moment[(first + i) * all + first + j]} -
                         double{out.mean[i]} * double{out.mean[j]};
    }
  }
  KVSPAN_TRY(out.basis, principal_rows(covariance));
  const std::size_t rows = learnt.sample_rows.size() / all;
  const std::size_t wanted = std::max<std::size_t>(32, kMostTrials / trials_of(width));
  const std::size_t stride = std::max<std::size_t>(1, (rows + wanted - 1) / wanted);
  out.samples = Matrix((rows + stride - 1) / stride, width);
  for (std::size_t r = 0; r < out.samples.rows(); ++r) {
    const float* z = learnt.sample_rows.data() + r * stride * all + first;
    for (std::size_t k = 0; k < width; ++k) {
      double sum = 0.0;
      for (std::size_t j = 0; j < width; ++j) {
        sum += double{out.basis(k, j)} * (double{z[j]} - double{out.mean[j]});
      }
      out.samples(r, k) = static_cast<float>(sum);
    }
  }
  return out;
}

// Squared error of components [begin, end) of all samples by kGroupBits: even levels from the least
// to the largest of a row.
std::array<double, kGroupBits.size()> group_errors(const Matrix& samples, std::size_t begin,
                                                   std::size_t end) {
  std::array<double, kGroupBits.size()> out{};
  for (std::size_t r = 0; r < samples.rows(); ++r) {
    const float *from = samples.row(r) + begin, *to = samples.row(r) + end;
    const auto [low, high] = std::minmax_element(from, to);
    for (std::size_t b = 0; b < kGroupBits.size(); ++b) {
      const auto levels = static_cast<float>((1 << kGroupBits[b]) - 1);
      const float step = levels > 0.0f ? (*high - *low) / levels : 0.0f;
      const float inverse = step > 0.0f ? 1.0f / step : 0.0f;
      float sum = 0.0f;
      for (const float* x = from; x != to; ++x) {
        const float back =
            levels > 0.0f ? *low + step * std::nearbyint((*x - *low) * inverse) : 0.0f;
        sum += (*x - back) * (*x - back);
      }
      out[b] += double{sum};
    }
  }
  return out;
}

// The groups of least error for at most `budget` bits a token: best[end][bits] over the last group
// before `end`. Groups at the end that have no bits are left out.
std::vector<CodecRun> plan_groups(const Matrix& samples, std::size_t budget) {
  struct Best {
    double error = std::numeric_limits<double>::infinity();
    std::uint32_t size = 0;
    int bits = 0;
  };
  const std::size_t width = samples.cols();
  std::vector<std::vector<Best>> best(width + 1, std::vector<Best>(budget + 1));
  for (Best& none : best[0]) none.error = 0.0;
  const auto cost_of = [](std::size_t size, int bits) {
    return bits == 0 ? 0 : size * static_cast<std::size_t>(bits) + kGroupOverhead;
  };
  for (std::size_t end = 1; end <= width; ++end) {
    for (const std::size_t size : kGroupSizes) {
      if (size > end) break;
      const auto errors = group_errors(samples, end - size, end);
      for (std::size_t b = 0; b < kGroupBits.size(); ++b) {
        const std::size_t cost = cost_of(size, kGroupBits[b]);
        for (std::size_t total = cost; total <= budget; ++total) {
          const double error = best[end - size][total - cost].error + errors[b];
          if (error < best[end][total].error) {
            best[end][total] = {error, static_cast<std::uint32_t>(size), kGroupBits[b]};
          }
        }
      }
    }
  }
  std::vector<CodecRun> groups;
  for (std::size_t end = width, total = budget; end > 0;) {
    const Best& last = best[end][total];
    if (last.bits > 0 || !groups.empty()) groups.push_back({last.size, last.bits});
    end -= last.size;
    total -= cost_of(last.size, last.bits);
  }
  std::reverse(groups.begin(), groups.end());
  return groups;
}

// The code of one side of a layer, from the calibration.
Result<std::shared_ptr<const Code>> design(const PrepareInput& in, std::size_t layer, bool keys,
                                           CodeStyle style) {
  const LayerShape& shape = in.shape.layers[layer];
  KVSPAN_TRY(const Components parts, components_of(shape, in.calibration->layers[layer], keys));
  const double bits = in.method.number("bits");
  const auto budget = static_cast<std::size_t>(bits * static_cast<double>(parts.basis.rows()));
  style.codec.runs = plan_groups(parts.samples, budget);
  std::size_t rank = 0;
  for (const CodecRun& run : style.codec.runs) rank += run.cols;
  if (rank == 0) {
    return fail(ErrorCode::kInvalidArgument,
                "kvtc: bits={} leaves no bits for the {} of layer {}, {} numbers a token; allowed: "
                "at least {:.2f}",
                bits, keys ? "keys" : "values", layer, parts.basis.rows(),
                static_cast<double>(kGroupOverhead + 2) / static_cast<double>(parts.basis.rows()));
  }
  return orthonormal_code(style, parts.basis.top(rank), parts.mean, in.shared, MemoryKind::kShared);
}

Result<SidePlan> kvtc_side(const PrepareInput& in, std::size_t layer, bool keys) {
  const LayerShape& shape = in.shape.layers[layer];
  SidePlan plan;
  plan.style.domain = keys ? Domain::kPreRopeKey : Domain::kValue;
  plan.style.heads = shape.kv_heads;
  plan.style.dim = keys ? shape.key_dim : shape.value_dim;
  plan.style.rope = keys ? &shape.rope : nullptr;
  plan.style.codec.kind = CodecKind::kMixed;
  KVSPAN_TRY(plan.start, in.designs.code(plan.style.heads, plan.style.dim, in.shared,
                                         [&] { return design(in, layer, keys, plan.style); }));
  plan.style.codec = plan.start->codec().spec();
  plan.rank.directions = plan.start->rank();
  return plan;
}

PreparedLayers make_kvtc(const PrepareInput& given) {
  Calibration whole_calibration;
  KVSPAN_TRY(const PrepareInput in, with_whole_calibration(given, whole_calibration));
  std::vector<PreparedLayer> layers(in.shape.layers.size());
  for (std::size_t l = 0; l < layers.size(); ++l) {
    KVSPAN_TRY(SidePlan keys, kvtc_side(in, l, true));
    KVSPAN_TRY(SidePlan values, kvtc_side(in, l, false));
    layers[l].groups.push_back(fixed_group(in.method, {0, in.shape.layers[l].kv_heads}, kKvtcUnit,
                                           std::move(keys), std::move(values)));
  }
  return layers;
}

}  // namespace

MethodDeclaration kvtc_method() {
  return {
      .name = "kvtc",
      .kind = MethodKind::kBaseline,
      .summary =
          "principal components of all heads of a layer, bits for groups of them by dynamic "
          "programming",
      .source = "KVTC (Staniszewski and Lancucki 2025)",
      .keys = kKvtcKeys,
      .example = "kvtc:bits=2",
      .size_keys = "bits",
      .make = make_kvtc,
      .needs_calibration = always,
  };
}

}  // namespace kvspan
