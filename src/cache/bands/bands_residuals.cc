// SPDX-License-Identifier: Apache-2.0
#include "cache/bands/bands_residuals.h"

#include <algorithm>
#include <cmath>

namespace kvspan {
namespace {

// |a - b|, squares times `weights` where there are any.
double distance(const float* a, const float* b, std::int32_t n, const float* weights) {
  double sum = 0.0;
  for (std::int32_t i = 0; i < n; ++i) {
    const double off = double{a[i]} - double{b[i]};
    sum += off * off * (weights != nullptr ? double{weights[i]} : 1.0);
  }
  return std::sqrt(sum);
}

}  // namespace

BandsResiduals::BandsResiduals(const BandsCode& code)
    : code_(code),
      key_rows_(static_cast<std::size_t>(code.key_width()) *
                static_cast<std::size_t>(code.places())),
      c_(static_cast<std::size_t>(code.places())),
      keys_(static_cast<std::size_t>(code.key_width())),
      values_(static_cast<std::size_t>(code.width() - code.key_width())),
      read_(static_cast<std::size_t>(code.key_dim())),
      x_(static_cast<std::size_t>(code.key_dim())) {
  for (std::int32_t h = 0; h < code.heads() && !key_rows_.empty(); ++h) {
    code.read_key_rows(h, const_cast<float*>(key_rows(h)));
  }
}

void BandsResiduals::read_key(std::int32_t head, const std::int8_t* codes, std::int8_t gain,
                              double* x) const {
  const double g = code_.gain() ? double{log_gain(gain)} : 1.0;
  const float* row = key_rows(head);
  for (std::int32_t j = 0; j < code_.key_dim(); ++j, row += code_.places()) {
    double sum = 0.0;
    for (std::int32_t p = 0; p < code_.places(); ++p) sum += double{row[p]} * (codes[p] + 0.5);
    x[j] = g * sum;
  }
}

void BandsResiduals::measure(const float* keys, const float* values, std::int32_t position,
                             const std::int8_t* codes, std::int8_t gain, BFloat16* norms) {
  code_.decode(codes, gain, c_.data());
  code_.restore(c_.data(), position, keys_.data(), values_.data());
  const std::int32_t dk = code_.key_dim(), dv = code_.value_dim();
  for (std::int32_t h = 0; h < code_.heads() && dk > 0; ++h) {
    const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(h) * dk;
    const float* weights = code_.key_weights(h);
    read_key(h, codes, gain, x_.data());
    std::copy(x_.begin(), x_.end(), read_.begin());
    code_.to_key(h, position, read_.data());
    *norms++ = bfloat16_above(std::max(distance(keys + at, keys_.data() + at, dk, weights),
                                       distance(keys + at, read_.data(), dk, weights)));
  }
  for (std::int32_t h = 0; h < code_.heads() && dv > 0; ++h) {
    const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(h) * dv;
    *norms++ = bfloat16_above(distance(values + at, values_.data() + at, dv, nullptr));
  }
}

}  // namespace kvspan
