// SPDX-License-Identifier: Apache-2.0
#include "cache/bands/bands_code.h"

#include <algorithm>
#include <cmath>

#include "base/cpu_level.h"
#include "cache/rows/dot.h"
#include "cache/rows/half_rows.h"
#include "codec/kernels.h"

namespace kvspan {
namespace {

// to [n] += factor * from [n]
void add_scaled(float factor, const float* from, std::int32_t n, float* to) noexcept {
  for (std::int32_t i = 0; i < n; ++i) to[i] += factor * from[i];
}

}  // namespace

void BandsCode::widen(const Rows& rows, std::int32_t count, std::int32_t stride,
                      float* to) const noexcept {
  const auto widen_row = codec_kernels(cpu_level()).f16_to_f32;
  for (std::int32_t j = 0; j < count; ++j, to += stride) {
    widen_row(rows.numbers + static_cast<std::ptrdiff_t>(j) * row_stride(),
              static_cast<std::size_t>(stride), to);
    for (std::int32_t p = 0; p < stride; ++p) to[p] *= rows.scales[j];
  }
}

void BandsCode::read_key_rows(std::int32_t head, float* to) const noexcept {
  if (before_rope_) {
    widen(key_rows(head), key_dim_, places_, to);
    for (std::int32_t j = 0; j < key_dim_; ++j) {
      for (std::int32_t p = 0; p < places_; ++p) *to++ *= steps()[p];
    }
    return;
  }
  for (std::int32_t j = 0; j < key_dim_; ++j) {
    for (std::int32_t p = 0; p < places_; ++p) {
      const std::ptrdiff_t quad = static_cast<std::ptrdiff_t>(p / 16) * dim_quads() + j / 4;
      const std::ptrdiff_t at = (quad * 16 + p % 16) * 4 + j % 4;
      float number = key_tiles(head)[at];
      if (fine_) number += static_cast<float>(key_tiles(head, 1)[at]) / kDigitBase;
      *to++ = key_scales(head)[p] * number;
    }
  }
}

// k = R(t)(Rot(t_a - t) x + mu)
void BandsCode::to_key(std::int32_t head, std::int32_t position, float* x) const noexcept {
  if (anchor_block_ > 0) rope_offset(rope_, anchor_of(position) - position, x);
  add_scaled(1.0f, key_mean(head), key_dim_, x);
  if (anchor_block_ > 0 || before_rope_) rope_rotate(rope_, position, x);
}

void BandsCode::gather(const float* keys, const float* values, std::int32_t position,
                       float* z) const noexcept {
  if (key_dim_ > 0) {
    std::copy_n(keys, key_width(), z);
    const bool anchored = anchor_block_ > 0;
    if (anchored || before_rope_) rope_unrotate(rope_, position, z, heads_, key_dim_);
    add_scaled(-1.0f, key_mean(0), key_width(), z);
    if (anchored) rope_offset(rope_, position - anchor_of(position), z, heads_, key_dim_);
  }
  if (value_dim_ > 0) {
    float* x = z + key_width();
    std::copy_n(values, heads_ * value_dim_, x);
    add_scaled(-1.0f, value_mean_.as<float>(), heads_ * value_dim_, x);
  }
}

// Number `row` of M z.
float BandsCode::weighed(std::int32_t row, const float* z) const noexcept {
  const bool key = row < key_width();
  const std::int32_t dim = key ? key_dim_ : value_dim_, within = key ? row : row - key_width();
  const float* blocks = (key ? key_blocks_ : value_blocks_).as<float>();
  if (blocks == nullptr) return weights_.as<float>()[row] * z[row];
  return dot(blocks + static_cast<std::ptrdiff_t>(within) * dim, z + row - within % dim,
             static_cast<std::size_t>(dim));
}

// With A', or with M and B.
void BandsCode::analyse(std::int32_t count, const float* z, float* c, double* squares) const noexcept {
  const auto d = static_cast<std::size_t>(width()), n = static_cast<std::size_t>(places_);
  const auto tokens = static_cast<std::size_t>(count);
  if (weights_.bytes() == 0) {
    for (std::size_t t = 0; t < tokens; ++t, z += d, c += n) {
      const float* a = analysis_.as<float>();
      for (std::size_t j = 0; j < d; ++j, a += n) add_scaled(z[j], a, places_, c);
      for (std::size_t i = 0; i < n; ++i) squares[t] += double{c[i]} * double{c[i]};
    }
    return;
  }
  const Rows b = rows(0);
  const auto stride = static_cast<std::size_t>(row_stride());
  float factors[kHalfVectors * kHalfRows];
  for (std::size_t first = 0; first < tokens; first += kHalfVectors) {
    const std::size_t vectors = std::min(kHalfVectors, tokens - first);
    for (std::size_t row = 0; row < d; row += kHalfRows) {
      const HalfRows rows{b.numbers + row * stride, stride, std::min(kHalfRows, d - row)};
      for (std::size_t v = 0; v < vectors; ++v) {
        for (std::size_t r = 0; r < rows.count; ++r) {
          const float* one = z + (first + v) * d;
          const float product = weighed(static_cast<std::int32_t>(row + r), one);
          factors[v * kHalfRows + r] = b.scales[row + r] * product;
          squares[first + v] += double{one[row + r]} * double{product};
        }
      }
      add_half_rows(rows, factors, vectors, n, c + first * n);
    }
  }
}

void BandsCode::read_analysis(float* to) const {
  std::vector<float> unit(static_cast<std::size_t>(width()), 0.0f);
  std::fill_n(to, static_cast<std::ptrdiff_t>(width()) * places_, 0.0f);
  for (std::int32_t j = 0; j < width(); ++j, to += places_) {
    unit[static_cast<std::size_t>(j)] = 1.0f;
    double square = 0.0;
    analyse(1, unit.data(), to, &square);
    unit[static_cast<std::size_t>(j)] = 0.0f;
  }
}

void BandsCode::encode(const float* z, std::int8_t* codes, std::int8_t* gain, float* work) const {
  std::vector<std::int8_t> values(static_cast<std::size_t>(places_));
  std::fill_n(work, places_, 0.0f);
  double square = 0.0;
  analyse(1, z, work, &square);
  quantize(1, work, codes, gain, values.data());
}

void BandsCode::quantize(std::int32_t count, const float* c, std::int8_t* codes, std::int8_t* gains,
                         std::int8_t* values) const {
  for (std::ptrdiff_t t = 0, at = 0; t < count; ++t, at += places_) {
    quantize_token(c + at, codes + at, values + at, gains + t);
  }
}

GainRule BandsCode::gain_rule() const noexcept {
  return {places_, inverse_sigma_.as<float>(), reach_.as<float>(), static_cast<float>(layout_.stored()), fine_error_};
}

void BandsCode::quantize_token(const float* c, std::int8_t* codes, std::int8_t* values,
                               std::int8_t* gain) const {
  float factor = 1.0f;
  *gain = 0;
  if (gain_) {
    *gain = log_gain_code(gain_rule().gain_of(c));
    factor = 1.0f / log_gain(*gain);
  }
  const std::span<const std::uint8_t> widths = layout_.quad_widths();
  for (std::size_t q = 0; q < widths.size(); ++q) {
    if (layout_.chained(widths[q])) continue;
    for (std::size_t i = kBandQuad * q; i < kBandQuad * (q + 1); ++i) {
      const float level = std::floor(c[i] * factor * inverse_steps_.as<float>()[i]);
      codes[i] = values[i] = static_cast<std::int8_t>(
          std::clamp(level, lowest_.as<float>()[i], highest_.as<float>()[i]));
    }
  }
  if (layout_.quantizer() == BandsQuantizer::kTrellis) find_path(c, factor, codes, values);
}

// Of the components that follow a trellis; the others have their codes.
void BandsCode::find_path(const float* c, float factor, std::int8_t* codes, std::int8_t* values) const {
  thread_local TrellisEncoder encoder;
  thread_local std::vector<float> x, weights;
  const auto n = static_cast<std::size_t>(places_);
  x.resize(n);
  weights.resize(n);
  for (std::size_t i = 0; i < n; ++i) {
    x[i] = c[i] * factor * inverse_steps_.as<float>()[i];
    weights[i] = steps()[i] * steps()[i];
  }
  encoder.encode(layout_.quad_widths(), x.data(), weights.data(), codes, values);
}

void BandsCode::decode(const std::int8_t* values, std::int8_t gain, float* c) const noexcept {
  const float factor = gain_ ? log_gain(gain) : 1.0f;
  for (std::int32_t i = 0; i < places_; ++i) {
    c[i] = factor * steps_.as<float>()[i] * (static_cast<float>(values[i]) + 0.5f);
  }
}

void BandsCode::restore(const float* c, std::int32_t position, float* keys,
                        float* values) const noexcept {
  const auto widen_piece = codec_kernels(cpu_level()).f16_to_f32;
  constexpr std::int32_t kPiece = 256;
  const auto synthesise = [&](const Rows& rows, std::int32_t dim, float* x) {
    float piece[kPiece];
    const Half* row = rows.numbers;
    for (std::int32_t j = 0; j < dim; ++j, row += row_stride()) {
      double sum = 0.0;
      for (std::int32_t from = 0; from < places_; from += kPiece) {
        const std::int32_t n = std::min(kPiece, places_ - from);
        widen_piece(row + from, static_cast<std::size_t>(n), piece);
        sum += dot<double>(piece, c + from, static_cast<std::size_t>(n));
      }
      x[j] = static_cast<float>(double{rows.scales[j]} * sum);
    }
  };
  for (std::int32_t h = 0; h < heads_; ++h) {
    if (key_dim_ > 0) {
      float* x = keys + static_cast<std::ptrdiff_t>(h) * key_dim_;
      synthesise(key_rows(h), key_dim_, x);
      to_key(h, position, x);
    }
    if (value_dim_ > 0) {
      float* x = values + static_cast<std::ptrdiff_t>(h) * value_dim_;
      synthesise(value_rows(h), value_dim_, x);
      add_scaled(1.0f, value_mean(h), value_dim_, x);
    }
  }
}

std::size_t BandsCode::bytes() const noexcept {
  return analysis_.bytes() + weights_.bytes() + key_blocks_.bytes() + value_blocks_.bytes() +
         synthesis_.bytes() + row_scales_.bytes() + steps_.bytes() + inverse_steps_.bytes() +
         lowest_.bytes() + highest_.bytes() + inverse_sigma_.bytes() + reach_.bytes() +
         key_tiles_.bytes() + key_scales_.bytes() + key_weights_.bytes() + key_mean_.bytes() + anchored_means_.bytes() +
         value_mean_.bytes();
}

}  // namespace kvspan
