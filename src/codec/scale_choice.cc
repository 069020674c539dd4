// SPDX-License-Identifier: Apache-2.0
#include "codec/scale_choice.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/half.h"

namespace kvspan {
namespace {

// The smallest value of the storage type that is not below v >= 0; infinite beyond its range.
float stored_up(ScaleType type, float v) {
  if (v == 0.0f) return 0.0f;
  // A subnormal scale would have no finite inverse.
  if (type == ScaleType::kF32) return std::max(v, std::numeric_limits<float>::min());
  Half h = to_half(v);
  if (to_float(h) < v) ++h.bits;  // the next pattern is the next number, infinity after 65504
  return to_float(h);
}

float stored(ScaleType type, float v) {
  // Adding 0 turns -0 into 0, so that the bits stored do not depend on which zero came first.
  return type == ScaleType::kF32 ? v + 0.0f : to_float(to_half(v + 0.0f));
}

}  // namespace

bool has_middle_levels(const CodecSpec& spec) noexcept {
  return spec.rule == ScaleRule::kSymmetric &&
         (spec.kind == CodecKind::kInt3 || spec.kind == CodecKind::kInt2);
}

std::pair<int, int> code_range(const CodecSpec& spec) noexcept {
  const int n = 1 << (bits_of(spec.kind) - 1);
  return {spec.rule == ScaleRule::kSymmetric && !has_middle_levels(spec) ? 1 - n : -n, n - 1};
}

StoredScale choose_scale(const CodecSpec& spec, float low, float high) noexcept {
  const float most = std::max(-low, high);
  const auto n = static_cast<float>(1 << (bits_of(spec.kind) - 1));
  StoredScale s;
  switch (spec.rule) {
    case ScaleRule::kLlama:
      s.fits =
          std::isfinite(to_float(to_half(most / (spec.kind == CodecKind::kInt8 ? 127.0f : 8.0f))));
      return s;
    case ScaleRule::kNormal:
      s.scale = stored(spec.scale, most);  // no row's root mean square is larger
      break;
    case ScaleRule::kSymmetric:
      s.scale = stored_up(spec.scale, most / (has_middle_levels(spec) ? n : n - 1.0f));
      break;
    case ScaleRule::kAsymmetric:
      // Codes reach n - 1 steps up and n down.
      s.offset = stored(spec.scale, low + n * ((high - low) / (2.0f * n - 1.0f)));
      if (!std::isfinite(s.offset)) return s;
      s.scale = stored_up(spec.scale,
                          std::max({(high - s.offset) / (n - 1.0f), (s.offset - low) / n, 0.0f}));
      break;
  }
  s.fits = std::isfinite(s.scale);
  return s;
}

}  // namespace kvspan
