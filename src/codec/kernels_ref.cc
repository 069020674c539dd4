// SPDX-License-Identifier: Apache-2.0
// Plain loops: they define what the other levels must give, and finish their tails.
#include <algorithm>
#include <bit>
#include <cmath>

#include "codec/kernels.h"

namespace kvspan::detail {
namespace {

constexpr std::size_t ceil_div(std::size_t a, std::size_t b) {
  return (a + b - 1) / b;
}

// Code i of a chunk of m, and its writing into zeroed bytes.
template <int kBits>
int get(const std::uint8_t* chunk, std::size_t m, std::size_t i) {
  if constexpr (kBits == 8) {
    return static_cast<std::int8_t>(chunk[i]);
  } else if constexpr (kBits == 3) {
    const std::size_t low_bytes = ceil_div(m, 4), h = ceil_div(m, 8);
    const int low = chunk[i % low_bytes] >> (2 * (i / low_bytes)) & 3;
    const int sign = chunk[low_bytes + i % h] >> (i / h) & 1;
    return low - 4 * sign;
  } else {
    constexpr int kHalf = 1 << (kBits - 1);
    const std::size_t h = ceil_div(m, 8 / kBits);
    const int raw = chunk[i % h] >> (kBits * (i / h)) & (2 * kHalf - 1);
    return (raw ^ kHalf) - kHalf;
  }
}

template <int kBits>
void put(std::uint8_t* chunk, std::size_t m, std::size_t i, int code) {
  const auto set = [&](std::size_t byte, std::size_t shift, int value) {
    chunk[byte] = static_cast<std::uint8_t>(chunk[byte] | value << shift);
  };
  if constexpr (kBits == 8) {
    chunk[i] = static_cast<std::uint8_t>(code);
  } else if constexpr (kBits == 3) {
    const std::size_t low_bytes = ceil_div(m, 4), h = ceil_div(m, 8);
    set(i % low_bytes, 2 * (i / low_bytes), code & 3);
    set(low_bytes + i % h, i / h, code < 0 ? 1 : 0);
  } else {
    const std::size_t h = ceil_div(m, 8 / kBits);
    set(i % h, kBits * (i / h), code & ((1 << kBits) - 1));
  }
}

template <int kBits>
void pack(const std::int8_t* codes, std::size_t n, std::uint8_t* packed) noexcept {
  std::fill(packed, packed + packed_bytes(kBits, n), std::uint8_t{0});
  for (std::size_t at = 0; at < n; at += kCodecChunk) {
    const std::size_t m = std::min(kCodecChunk, n - at);
    for (std::size_t i = 0; i < m; ++i) {
      put<kBits>(packed + packed_bytes(kBits, at), m, i, codes[at + i]);
    }
  }
}

template <int kBits, class Sink>
void each_code(const std::uint8_t* packed, std::size_t n, Sink sink) {
  for (std::size_t at = 0; at < n; at += kCodecChunk) {
    const std::size_t m = std::min(kCodecChunk, n - at);
    for (std::size_t i = 0; i < m; ++i) {
      sink(at + i, get<kBits>(packed + packed_bytes(kBits, at), m, i));
    }
  }
}

template <int kBits>
void unpack(const std::uint8_t* packed, std::size_t n, std::int8_t* codes) noexcept {
  each_code<kBits>(packed, n,
                   [&](std::size_t i, int code) { codes[i] = static_cast<std::int8_t>(code); });
}

template <int kBits>
void decode_chunks(const std::uint8_t* packed, std::size_t n, const float* scale,
                   const float* offset, float* out) noexcept {
  each_code<kBits>(packed, n, [&](std::size_t i, int code) {
    const std::size_t c = i / kCodecChunk;
    out[i] = std::fma(scale[c], static_cast<float>(code), offset[c]);
  });
}

template <int kBits>
void decode_columns(const std::uint8_t* packed, std::size_t n, const float* scale,
                    const float* offset, float* out) noexcept {
  each_code<kBits>(packed, n, [&](std::size_t i, int code) {
    out[i] = std::fma(scale[i], static_cast<float>(code), offset[i]);
  });
}

std::int8_t quantize(float x, float inverse, float offset, int lowest, int highest) {
  const float rounded = std::nearbyint((x - offset) * inverse);
  return static_cast<std::int8_t>(
      std::clamp(rounded, static_cast<float>(lowest), static_cast<float>(highest)));
}

void quantize_chunks(const float* x, std::size_t n, const float* inverse, const float* offset,
                     int lowest, int highest, std::int8_t* codes) noexcept {
  for (std::size_t i = 0; i < n; ++i) {
    const std::size_t c = i / kCodecChunk;
    codes[i] = quantize(x[i], inverse[c], offset[c], lowest, highest);
  }
}

void quantize_columns(const float* x, std::size_t n, const float* inverse, const float* offset,
                      int lowest, int highest, std::int8_t* codes) noexcept {
  for (std::size_t i = 0; i < n; ++i) {
    codes[i] = quantize(x[i], inverse[i], offset[i], lowest, highest);
  }
}

void quantize_midrise(const float* x, std::size_t n, const float* inverse, const float* lowest,
                      const float* highest, std::int8_t* codes) noexcept {
  for (std::size_t i = 0; i < n; ++i) {
    const float level = std::floor(x[i] * inverse[i]);
    codes[i] = static_cast<std::int8_t>(std::clamp(level, lowest[i], highest[i]));
  }
}

std::uint32_t max_magnitude(const float* x, std::size_t n) noexcept {
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < n; ++i) {
    largest = std::max(largest, std::bit_cast<std::uint32_t>(x[i]) & 0x7fffffffu);
  }
  return largest;
}

void widen_range(const float* x, std::size_t n, float* low, float* high) noexcept {
  for (std::size_t i = 0; i < n; ++i) {
    *low = std::min(*low, x[i]);
    *high = std::max(*high, x[i]);
  }
}

void widen_columns(const float* x, std::size_t n, float* low, float* high) noexcept {
  for (std::size_t i = 0; i < n; ++i) {
    low[i] = std::min(low[i], x[i]);
    high[i] = std::max(high[i], x[i]);
  }
}

void residual(const float* x, const float* y, std::size_t n, Residual* r) noexcept {
  for (std::size_t i = 0; i < n; ++i) {
    const double difference = static_cast<double>(x[i]) - static_cast<double>(y[i]);
    r->squares += difference * difference;
    r->largest = std::max(r->largest, std::fabs(x[i] - y[i]));
  }
}

template <class From, class To, To (*kConvert)(From)>
void convert(const From* x, std::size_t n, To* out) noexcept {
  for (std::size_t i = 0; i < n; ++i) out[i] = kConvert(x[i]);
}

template <int kBits>
constexpr PackKernels pack_kernels() {
  return {pack<kBits>, unpack<kBits>, decode_chunks<kBits>, decode_columns<kBits>};
}

}  // namespace

const CodecKernels kCodecKernelsRef = {
    .int8 = pack_kernels<8>(),
    .int4 = pack_kernels<4>(),
    .int3 = pack_kernels<3>(),
    .int2 = pack_kernels<2>(),
    .quantize_chunks = quantize_chunks,
    .quantize_columns = quantize_columns,
    .quantize_midrise = quantize_midrise,
    .max_magnitude = max_magnitude,
    .widen_range = widen_range,
    .widen_columns = widen_columns,
    .residual = residual,
    .f32_to_f16 = convert<float, Half, [](float v) { return to_half(v); }>,
    .f16_to_f32 = convert<Half, float, [](Half v) { return to_float(v); }>,
    .f32_to_bf16 = convert<float, BFloat16, [](float v) { return to_bfloat16(v); }>,
    .bf16_to_f32 = convert<BFloat16, float, [](BFloat16 v) { return to_float(v); }>,
};

}  // namespace kvspan::detail
