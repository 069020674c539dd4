// SPDX-License-Identifier: Apache-2.0
// Uniform midrise quantizer with fitted steps: 2^b levels at step (v + 1/2), the code v running
// from -2^(b-1) to 2^(b-1) - 1, so that no level is zero and the outermost cells reach to infinity.
//     v = clamp(floor(x / step))       x^ = step (v + 1/2)
// With b = 0 nothing is stored and x^ = 0. Steps are per component and come from data (or from the
// Gaussian optimum); there is no scale in the stream.
// Source: J. Max, Quantizing for minimum distortion, IRE Trans. IT-6, 1960 (uniform case).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "codec/kernels.h"
#include "kvspan/result.h"
#include "kvspan/tensor_view.h"

namespace kvspan {

inline constexpr int kMidriseMaxBits = 8;

struct MidriseFit {
  double step = 0;
  double distortion = 0;  // mean squared error
};

// The best step for a Gaussian of variance 1, and its distortion: D(b) of the bit allocation.
// bits in 0..8. Found by golden section on the closed form; both to about 1e-8.
MidriseFit gaussian_midrise(int bits);

// The mean squared error of `values` under a given step.
double midrise_distortion(std::span<const float> values, int bits, double step);

// The step of least squared error for `values` (all finite): 24 steps around the root mean square,
// then golden section about the best of them. All zeros, or no values: step 1. Costs about 40
// passes.
MidriseFit fit_midrise(std::span<const float> values, int bits);

// Quantizer of rows whose components have steps and bits of their own. Immutable.
class MidriseQuantizer {
 public:
  MidriseQuantizer() = default;
  // Steps must be positive and finite where bits > 0; bits in 0..8.
  static Result<MidriseQuantizer> create(std::span<const float> steps,
                                         std::span<const std::uint8_t> bits);
  // Steps fitted to the columns of samples [n, components].
  static Result<MidriseQuantizer> fit(TensorView<const float, 2> samples,
                                      std::span<const std::uint8_t> bits);

  std::size_t components() const noexcept { return step_.size(); }
  std::span<const float> steps() const noexcept { return step_; }  // 0 where bits are 0
  std::span<const std::uint8_t> bits() const noexcept { return bits_; }

  // x [components] finite -> codes [components]; 0 where bits are 0.
  void encode(const float* x, std::int8_t* codes) const noexcept;
  // codes [components] -> out [components].
  void decode(const std::int8_t* codes, float* out) const noexcept;

 private:
  std::vector<float> step_, half_step_, inverse_, lowest_, highest_;
  std::vector<std::uint8_t> bits_;
  const CodecKernels* kernels_ = nullptr;
};

// Gain of one token in 8 bits, logarithmic: gain = 2^(code / 8), from 2^-16 to 2^15.875, so within
// 4.5 % of any value in that range; outside it the nearest end. rms >= 0.
std::int8_t log_gain_code(float rms) noexcept;
float log_gain(std::int8_t code) noexcept;

}  // namespace kvspan
