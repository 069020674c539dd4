// SPDX-License-Identifier: Apache-2.0
#include "codec/bands/midrise.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numbers>

#include "base/expect.h"
#include "base/fail.h"

namespace kvspan {
namespace {

double density(double x) {
  return std::exp(-0.5 * x * x) / std::sqrt(2.0 * std::numbers::pi);
}
double upper_tail(double x) {
  return 0.5 * std::erfc(x / std::numbers::sqrt2);
}

// Mean squared error of the 2^bits-level quantizer on a Gaussian. A cell [a, b) with level c gives
// (1 + c^2)(P(b) - P(a)) - (b p(b) - a p(a)) + 2 c (p(b) - p(a)), p the density, P its integral.
double gaussian_distortion(int bits, double step) {
  const int half = 1 << (bits - 1);
  double sum = 0;
  for (int k = 0; k < half; ++k) {
    const double a = k * step, b = (k + 1) * step, c = (k + 0.5) * step;
    const bool last = k == half - 1;
    const double mass = upper_tail(a) - (last ? 0.0 : upper_tail(b));
    const double pb = last ? 0.0 : density(b), bpb = last ? 0.0 : b * pb;
    sum += (1 + c * c) * mass - (bpb - a * density(a)) + 2 * c * (pb - density(a));
  }
  return 2 * sum;
}

// Minimum of f between low and high on a logarithmic scale, given that it has only one there.
template <class Function>
MidriseFit golden_section(Function f, double low, double high, int rounds) {
  const double ratio = 1 / std::numbers::phi;
  double a = std::log(low), b = std::log(high);
  double x = b - ratio * (b - a), y = a + ratio * (b - a);
  double fx = f(std::exp(x)), fy = f(std::exp(y));
  for (int i = 0; i < rounds; ++i) {
    if (fx < fy) {
      b = y, y = x, fy = fx;
      x = b - ratio * (b - a);
      fx = f(std::exp(x));
    } else {
      a = x, x = y, fx = fy;
      y = a + ratio * (b - a);
      fy = f(std::exp(y));
    }
  }
  return fx < fy ? MidriseFit{std::exp(x), fx} : MidriseFit{std::exp(y), fy};
}

double mean_square(std::span<const float> values) {
  double sum = 0;
  for (const float v : values) sum += static_cast<double>(v) * v;
  return values.empty() ? 0.0 : sum / static_cast<double>(values.size());
}

}  // namespace

MidriseFit gaussian_midrise(int bits) {
  KVSPAN_EXPECT(bits >= 0 && bits <= kMidriseMaxBits, "0 to 8 bits");
  if (bits == 0) return {1.0, 1.0};
  const double levels = std::ldexp(1.0, bits);
  return golden_section([&](double step) { return gaussian_distortion(bits, step); }, 1 / levels,
                        12 / levels, 50);
}

double midrise_distortion(std::span<const float> values, int bits, double step) {
  if (values.empty()) return 0.0;
  if (bits == 0) return mean_square(values);
  const auto inverse = static_cast<float>(1.0 / step), width = static_cast<float>(step);
  const auto highest = static_cast<float>((1 << (bits - 1)) - 1), lowest = -highest - 1;
  // Eight running sums, so that additions need not wait for each other.
  std::array<double, 8> sums{};
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float level = std::clamp(std::floor(values[i] * inverse), lowest, highest);
    const double error = values[i] - (level + 0.5f) * width;
    sums[i % 8] += error * error;
  }
  double total = 0;
  for (const double sum : sums) total += sum;
  return total / static_cast<double>(values.size());
}

MidriseFit fit_midrise(std::span<const float> values, int bits) {
  KVSPAN_EXPECT(bits >= 0 && bits <= kMidriseMaxBits, "0 to 8 bits");
  const double rms = std::sqrt(mean_square(values));
  if (bits == 0 || rms == 0.0) return {1.0, rms * rms};
  // Half the range, from 0.5 to 12 rms: constants of one sign want 1, tails of a Laplacian at 8
  // bits about 9.
  constexpr int kTrials = 24;
  constexpr double kFirst = 0.5, kLast = 12.0;
  const double ratio = std::pow(kLast / kFirst, 1.0 / (kTrials - 1));
  const double half_levels = std::ldexp(1.0, bits - 1);
  const auto distortion = [&](double step) { return midrise_distortion(values, bits, step); };
  MidriseFit best{0, std::numeric_limits<double>::infinity()};
  double range = kFirst;
  for (int i = 0; i < kTrials; ++i, range *= ratio) {
    const double step = range * rms / half_levels, d = distortion(step);
    if (d < best.distortion) best = {step, d};
  }
  const MidriseFit fine = golden_section(distortion, best.step / ratio, best.step * ratio, 14);
  return fine.distortion < best.distortion ? fine : best;
}

Result<MidriseQuantizer> MidriseQuantizer::create(std::span<const float> steps,
                                                  std::span<const std::uint8_t> bits) {
  KVSPAN_EXPECT(steps.size() == bits.size(), "a step and bits for each component");
  MidriseQuantizer q;
  q.kernels_ = &codec_kernels(cpu_level());
  q.bits_.assign(bits.begin(), bits.end());
  for (std::size_t i = 0; i < steps.size(); ++i) {
    if (bits[i] > kMidriseMaxBits) {
      return fail(ErrorCode::kInvalidArgument, "component {}: {} bits; allowed are 0 to {}", i,
                  bits[i], kMidriseMaxBits);
    }
    // Below 2^-126 the inverse would not be finite.
    const bool usable = std::isfinite(steps[i]) && steps[i] >= std::numeric_limits<float>::min();
    if (bits[i] > 0 && !usable) {
      return fail(ErrorCode::kInvalidArgument,
                  "component {}: step {}; a positive normal number is needed", i, steps[i]);
    }
    const bool coded = bits[i] > 0;
    const auto half = coded ? static_cast<float>(1 << (bits[i] - 1)) : 0.0f;
    q.step_.push_back(coded ? steps[i] : 0.0f);
    q.half_step_.push_back(coded ? 0.5f * steps[i] : 0.0f);
    q.inverse_.push_back(coded ? 1.0f / steps[i] : 0.0f);
    q.lowest_.push_back(-half);
    q.highest_.push_back(coded ? half - 1.0f : 0.0f);
  }
  return q;
}

Result<MidriseQuantizer> MidriseQuantizer::fit(TensorView<const float, 2> samples,
                                               std::span<const std::uint8_t> bits) {
  KVSPAN_EXPECT(samples.shape[1] == bits.size(), "bits for each component");
  std::vector<float> steps(bits.size(), 0.0f), column(samples.shape[0]);
  for (std::size_t i = 0; i < bits.size(); ++i) {
    if (bits[i] == 0 || bits[i] > kMidriseMaxBits) continue;
    for (std::size_t r = 0; r < column.size(); ++r) {
      column[r] = samples.row(r)[i];
      if (!std::isfinite(column[r])) {
        return fail(ErrorCode::kInvalidArgument, "row {}, column {}: {} is not finite", r, i,
                    column[r]);
      }
    }
    steps[i] = std::max(static_cast<float>(fit_midrise(column, bits[i]).step),
                        std::numeric_limits<float>::min());
  }
  return create(steps, bits);
}

void MidriseQuantizer::encode(const float* x, std::int8_t* codes) const noexcept {
  kernels_->quantize_midrise(x, components(), inverse_.data(), lowest_.data(), highest_.data(),
                             codes);
}

void MidriseQuantizer::decode(const std::int8_t* codes, float* out) const noexcept {
  kernels_->int8.decode_columns(reinterpret_cast<const std::uint8_t*>(codes), components(),
                                step_.data(), half_step_.data(), out);
}

std::int8_t log_gain_code(float rms) noexcept {
  if (!(rms > 0x1p-16f)) return -128;
  return static_cast<std::int8_t>(std::clamp(std::round(8.0f * std::log2(rms)), -128.0f, 127.0f));
}

float log_gain(std::int8_t code) noexcept {
  return std::exp2(static_cast<float>(code) / 8.0f);
}

}  // namespace kvspan
