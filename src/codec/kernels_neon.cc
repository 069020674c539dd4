// SPDX-License-Identifier: Apache-2.0
// Codec loops for Armv8 NEON. Whole chunks of 32 here, tails through the reference. Only intrinsics
// and functions of this file: an inline function shared with other files could end up compiled for
// this instruction set there.
#include <arm_neon.h>

#include "codec/kernels.h"

namespace kvspan::detail {
namespace {

struct Codes {
  int8x16_t first, second;  // components 0..15 and 16..31 of a chunk
};

struct Int8 {
  static constexpr std::size_t kBytes = 32;
  static const PackKernels& tail() { return kCodecKernelsRef.int8; }
  static Codes load(const std::uint8_t* p) {
    return {vreinterpretq_s8_u8(vld1q_u8(p)), vreinterpretq_s8_u8(vld1q_u8(p + 16))};
  }
  static void store(Codes c, std::uint8_t* p) {
    vst1q_u8(p, vreinterpretq_u8_s8(c.first));
    vst1q_u8(p + 16, vreinterpretq_u8_s8(c.second));
  }
};

struct Int4 {
  static constexpr std::size_t kBytes = 16;
  static const PackKernels& tail() { return kCodecKernelsRef.int4; }
  static Codes load(const std::uint8_t* p) {
    const int8x16_t v = vreinterpretq_s8_u8(vld1q_u8(p));
    return {vshrq_n_s8(vshlq_n_s8(v, 4), 4), vshrq_n_s8(v, 4)};
  }
  static void store(Codes c, std::uint8_t* p) {
    vst1q_u8(p, vsliq_n_u8(vreinterpretq_u8_s8(c.first), vreinterpretq_u8_s8(c.second), 4));
  }
};

// Byte lanes 0..7 and 8..15 of a vector shifted differently: the two-bit plane's two eighths.
inline int8x16_t eighths(int low, int high) {
  return vcombine_s8(vdup_n_s8(static_cast<std::int8_t>(low)),
                     vdup_n_s8(static_cast<std::int8_t>(high)));
}
inline uint8x16_t twice(const std::uint8_t* p) {
  const uint8x8_t v = vld1_u8(p);
  return vcombine_u8(v, v);
}
// The low two bits of 32 codes as 8 bytes.
inline uint8x8_t two_bit_plane(Codes c) {
  const uint8x16_t mask = vdupq_n_u8(3);
  const uint8x16_t a = vandq_u8(vreinterpretq_u8_s8(c.first), mask);
  const uint8x16_t b = vandq_u8(vreinterpretq_u8_s8(c.second), mask);
  const uint8x16_t pairs = vorrq_u8(a, vshlq_n_u8(b, 4));  // eighths 0|2 and 1|3
  return vorr_u8(vget_low_u8(pairs), vshl_n_u8(vget_high_u8(pairs), 2));
}

struct Int2 {
  static constexpr std::size_t kBytes = 8;
  static const PackKernels& tail() { return kCodecKernelsRef.int2; }
  static Codes load(const std::uint8_t* p) {
    const int8x16_t v = vreinterpretq_s8_u8(twice(p));
    // Moves each code to the top of its byte; the arithmetic shift back extends its sign.
    return {vshrq_n_s8(vshlq_s8(v, eighths(6, 4)), 6), vshrq_n_s8(vshlq_s8(v, eighths(2, 0)), 6)};
  }
  static void store(Codes c, std::uint8_t* p) { vst1_u8(p, two_bit_plane(c)); }
};

struct Int3 {
  static constexpr std::size_t kBytes = 12;
  static const PackKernels& tail() { return kCodecKernelsRef.int3; }
  // Lane l of half k tests bit 4k + l / 4 of byte l % 4.
  static uint8x16_t bits(int first) {
    const uint32x4_t b = {0x01010101u, 0x02020202u, 0x04040404u, 0x08080808u};
    return vreinterpretq_u8_u32(first == 0 ? b : vshlq_n_u32(b, 4));
  }
  static Codes load(const std::uint8_t* p) {
    const uint8x16_t low = twice(p), mask = vdupq_n_u8(0xfc);
    std::uint32_t word;
    __builtin_memcpy(&word, p + 8, 4);
    const uint8x16_t signs = vreinterpretq_u8_u32(vdupq_n_u32(word));
    const uint8x16_t a = vshlq_u8(low, eighths(0, -2)), b = vshlq_u8(low, eighths(-4, -6));
    // The sign's copies above the low two bits, which need no mask of their own.
    return {vreinterpretq_s8_u8(vbslq_u8(mask, vtstq_u8(signs, bits(0)), a)),
            vreinterpretq_s8_u8(vbslq_u8(mask, vtstq_u8(signs, bits(4)), b))};
  }
  static void store(Codes c, std::uint8_t* p) {
    vst1_u8(p, two_bit_plane(c));
    const uint8x16_t a = vandq_u8(vcltzq_s8(c.first), bits(0));
    const uint8x16_t b = vandq_u8(vcltzq_s8(c.second), bits(4));
    const uint8x16_t both = vorrq_u8(a, b);
    const uint8x8_t half = vorr_u8(vget_low_u8(both), vget_high_u8(both));
    const std::uint64_t lanes = vget_lane_u64(vreinterpret_u64_u8(half), 0);
    const auto word = static_cast<std::uint32_t>(lanes | lanes >> 32);
    __builtin_memcpy(p + 8, &word, 4);
  }
};

template <class Width>
void pack(const std::int8_t* codes, std::size_t n, std::uint8_t* packed) noexcept {
  for (; n >= kCodecChunk; n -= kCodecChunk, codes += kCodecChunk, packed += Width::kBytes) {
    Width::store({vld1q_s8(codes), vld1q_s8(codes + 16)}, packed);
  }
  if (n != 0) Width::tail().pack(codes, n, packed);
}

template <class Width>
void unpack(const std::uint8_t* packed, std::size_t n, std::int8_t* codes) noexcept {
  for (; n >= kCodecChunk; n -= kCodecChunk, codes += kCodecChunk, packed += Width::kBytes) {
    const Codes c = Width::load(packed);
    vst1q_s8(codes, c.first);
    vst1q_s8(codes + 16, c.second);
  }
  if (n != 0) Width::tail().unpack(packed, n, codes);
}

// 16 codes to floats; `affine(i, v)` maps the four from lane 4 i.
template <class Affine>
inline void widen(int8x16_t codes, float* out, Affine affine) {
  const int16x8_t a = vmovl_s8(vget_low_s8(codes)), b = vmovl_high_s8(codes);
  vst1q_f32(out, affine(0, vcvtq_f32_s32(vmovl_s16(vget_low_s16(a)))));
  vst1q_f32(out + 4, affine(1, vcvtq_f32_s32(vmovl_high_s16(a))));
  vst1q_f32(out + 8, affine(2, vcvtq_f32_s32(vmovl_s16(vget_low_s16(b)))));
  vst1q_f32(out + 12, affine(3, vcvtq_f32_s32(vmovl_high_s16(b))));
}

template <class Width>
void decode_chunks(const std::uint8_t* packed, std::size_t n, const float* scale,
                   const float* offset, float* out) noexcept {
  for (; n >= kCodecChunk; n -= kCodecChunk, out += kCodecChunk, packed += Width::kBytes) {
    const Codes c = Width::load(packed);
    const float32x4_t s = vdupq_n_f32(*scale++), o = vdupq_n_f32(*offset++);
    const auto affine = [&](int, float32x4_t v) { return vfmaq_f32(o, v, s); };
    widen(c.first, out, affine);
    widen(c.second, out + 16, affine);
  }
  if (n != 0) Width::tail().decode_chunks(packed, n, scale, offset, out);
}

template <class Width>
void decode_columns(const std::uint8_t* packed, std::size_t n, const float* scale,
                    const float* offset, float* out) noexcept {
  for (; n >= kCodecChunk; n -= kCodecChunk, out += kCodecChunk, packed += Width::kBytes) {
    const Codes c = Width::load(packed);
    const auto affine = [&](int i, float32x4_t v) {
      return vfmaq_f32(vld1q_f32(offset + 4 * i), v, vld1q_f32(scale + 4 * i));
    };
    widen(c.first, out, affine);
    scale += 16, offset += 16;
    widen(c.second, out + 16, affine);
    scale += 16, offset += 16;
  }
  if (n != 0) Width::tail().decode_columns(packed, n, scale, offset, out);
}

// 16 numbers to codes; `scaled(i)` gives the four from lane 4 i, to be rounded.
template <class Scaled>
inline int8x16_t narrow(Scaled scaled, int8x16_t lowest, int8x16_t highest) {
  const int16x8_t a =
      vqmovn_high_s32(vqmovn_s32(vcvtnq_s32_f32(scaled(0))), vcvtnq_s32_f32(scaled(1)));
  const int16x8_t b =
      vqmovn_high_s32(vqmovn_s32(vcvtnq_s32_f32(scaled(2))), vcvtnq_s32_f32(scaled(3)));
  return vminq_s8(vmaxq_s8(vqmovn_high_s16(vqmovn_s16(a), b), lowest), highest);
}

void quantize_chunks(const float* x, std::size_t n, const float* inverse, const float* offset,
                     int lowest, int highest, std::int8_t* codes) noexcept {
  const int8x16_t low = vdupq_n_s8(static_cast<std::int8_t>(lowest));
  const int8x16_t high = vdupq_n_s8(static_cast<std::int8_t>(highest));
  for (; n >= kCodecChunk; n -= kCodecChunk, ++inverse, ++offset) {
    const float32x4_t o = vdupq_n_f32(*offset);
    const float f = *inverse;
    for (int half = 0; half < 2; ++half, x += 16, codes += 16) {
      const auto scaled = [&](int i) { return vmulq_n_f32(vsubq_f32(vld1q_f32(x + 4 * i), o), f); };
      vst1q_s8(codes, narrow(scaled, low, high));
    }
  }
  if (n != 0) kCodecKernelsRef.quantize_chunks(x, n, inverse, offset, lowest, highest, codes);
}

void quantize_columns(const float* x, std::size_t n, const float* inverse, const float* offset,
                      int lowest, int highest, std::int8_t* codes) noexcept {
  const int8x16_t low = vdupq_n_s8(static_cast<std::int8_t>(lowest));
  const int8x16_t high = vdupq_n_s8(static_cast<std::int8_t>(highest));
  for (; n >= 16; n -= 16, x += 16, inverse += 16, offset += 16, codes += 16) {
    const auto scaled = [&](int i) {
      return vmulq_f32(vsubq_f32(vld1q_f32(x + 4 * i), vld1q_f32(offset + 4 * i)),
                       vld1q_f32(inverse + 4 * i));
    };
    vst1q_s8(codes, narrow(scaled, low, high));
  }
  kCodecKernelsRef.quantize_columns(x, n, inverse, offset, lowest, highest, codes);
}

void quantize_midrise(const float* x, std::size_t n, const float* inverse, const float* lowest,
                      const float* highest, std::int8_t* codes) noexcept {
  const int8x16_t least = vdupq_n_s8(-128), most = vdupq_n_s8(127);
  for (; n >= 16; n -= 16, x += 16, inverse += 16, lowest += 16, highest += 16, codes += 16) {
    const auto level = [&](int i) {
      const float32x4_t y = vrndmq_f32(vmulq_f32(vld1q_f32(x + 4 * i), vld1q_f32(inverse + 4 * i)));
      return vminq_f32(vmaxq_f32(y, vld1q_f32(lowest + 4 * i)), vld1q_f32(highest + 4 * i));
    };
    vst1q_s8(codes, narrow(level, least, most));
  }
  kCodecKernelsRef.quantize_midrise(x, n, inverse, lowest, highest, codes);
}

std::uint32_t max_magnitude(const float* x, std::size_t n) noexcept {
  const uint32x4_t magnitude = vdupq_n_u32(0x7fffffffu);
  uint32x4_t a = vdupq_n_u32(0), b = a, c = a, d = a;
  const auto bits = [&](const float* p) {
    return vandq_u32(vreinterpretq_u32_f32(vld1q_f32(p)), magnitude);
  };
  for (; n >= 16; n -= 16, x += 16) {
    a = vmaxq_u32(a, bits(x));
    b = vmaxq_u32(b, bits(x + 4));
    c = vmaxq_u32(c, bits(x + 8));
    d = vmaxq_u32(d, bits(x + 12));
  }
  const std::uint32_t most = vmaxvq_u32(vmaxq_u32(vmaxq_u32(a, b), vmaxq_u32(c, d)));
  const std::uint32_t rest = kCodecKernelsRef.max_magnitude(x, n);
  return most > rest ? most : rest;
}

void widen_range(const float* x, std::size_t n, float* low, float* high) noexcept {
  float32x4_t a = vdupq_n_f32(*low), b = a, c = vdupq_n_f32(*high), d = c;
  for (; n >= 8; n -= 8, x += 8) {
    const float32x4_t u = vld1q_f32(x), v = vld1q_f32(x + 4);
    a = vminq_f32(a, u);
    b = vminq_f32(b, v);
    c = vmaxq_f32(c, u);
    d = vmaxq_f32(d, v);
  }
  *low = vminvq_f32(vminq_f32(a, b));
  *high = vmaxvq_f32(vmaxq_f32(c, d));
  kCodecKernelsRef.widen_range(x, n, low, high);
}

void widen_columns(const float* x, std::size_t n, float* low, float* high) noexcept {
  for (; n >= 4; n -= 4, x += 4, low += 4, high += 4) {
    const float32x4_t v = vld1q_f32(x);
    vst1q_f32(low, vminq_f32(vld1q_f32(low), v));
    vst1q_f32(high, vmaxq_f32(vld1q_f32(high), v));
  }
  kCodecKernelsRef.widen_columns(x, n, low, high);
}

void residual(const float* x, const float* y, std::size_t n, Residual* r) noexcept {
  float32x4_t sum[4], most[4];
  for (int k = 0; k < 4; ++k) sum[k] = most[k] = vdupq_n_f32(0);
  for (; n >= 16; n -= 16, x += 16, y += 16) {
    for (int k = 0; k < 4; ++k) {
      const float32x4_t d = vabdq_f32(vld1q_f32(x + 4 * k), vld1q_f32(y + 4 * k));
      sum[k] = vfmaq_f32(sum[k], d, d);
      most[k] = vmaxq_f32(most[k], d);
    }
  }
  const float32x4_t total = vaddq_f32(vaddq_f32(sum[0], sum[1]), vaddq_f32(sum[2], sum[3]));
  const float top = vmaxvq_f32(vmaxq_f32(vmaxq_f32(most[0], most[1]), vmaxq_f32(most[2], most[3])));
  r->squares += static_cast<double>(vaddvq_f32(total));
  r->largest = top > r->largest ? top : r->largest;
  kCodecKernelsRef.residual(x, y, n, r);
}

void f32_to_f16(const float* x, std::size_t n, Half* out) noexcept {
  for (; n >= 8; n -= 8, x += 8, out += 8) {
    const float16x8_t h = vcvt_high_f16_f32(vcvt_f16_f32(vld1q_f32(x)), vld1q_f32(x + 4));
    vst1q_u16(&out->bits, vreinterpretq_u16_f16(h));
  }
  kCodecKernelsRef.f32_to_f16(x, n, out);
}

void f16_to_f32(const Half* x, std::size_t n, float* out) noexcept {
  for (; n >= 8; n -= 8, x += 8, out += 8) {
    const float16x8_t h = vreinterpretq_f16_u16(vld1q_u16(&x->bits));
    vst1q_f32(out, vcvt_f32_f16(vget_low_f16(h)));
    vst1q_f32(out + 4, vcvt_high_f32_f16(h));
  }
  for (; n > 0; --n, ++x, ++out) {  // scales of a row are few: their tail matters
    *out = vgetq_lane_f32(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(x->bits))), 0);
  }
}

// Round to nearest, ties to even, in integers; a NaN keeps its upper bits and stays one.
inline uint16x4_t bfloat(uint32x4_t bits) {
  const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
  const uint32x4_t rounded = vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), odd);
  const uint32x4_t nan =
      vcgtq_u32(vandq_u32(bits, vdupq_n_u32(0x7fffffffu)), vdupq_n_u32(0x7f800000u));
  const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x400000));
  return vshrn_n_u32(vbslq_u32(nan, quiet, rounded), 16);
}

void f32_to_bf16(const float* x, std::size_t n, BFloat16* out) noexcept {
  for (; n >= 8; n -= 8, x += 8, out += 8) {
    const uint16x4_t a = bfloat(vreinterpretq_u32_f32(vld1q_f32(x)));
    const uint16x4_t b = bfloat(vreinterpretq_u32_f32(vld1q_f32(x + 4)));
    vst1q_u16(&out->bits, vcombine_u16(a, b));
  }
  kCodecKernelsRef.f32_to_bf16(x, n, out);
}

void bf16_to_f32(const BFloat16* x, std::size_t n, float* out) noexcept {
  for (; n >= 8; n -= 8, x += 8, out += 8) {
    const uint16x8_t b = vld1q_u16(&x->bits);
    vst1q_f32(out, vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(b), 16)));
    vst1q_f32(out + 4, vreinterpretq_f32_u32(vshll_high_n_u16(b, 16)));
  }
  kCodecKernelsRef.bf16_to_f32(x, n, out);
}

template <class Width>
constexpr PackKernels pack_kernels() {
  return {pack<Width>, unpack<Width>, decode_chunks<Width>, decode_columns<Width>};
}

}  // namespace

const CodecKernels kCodecKernelsNeon = {
    .int8 = pack_kernels<Int8>(),
    .int4 = pack_kernels<Int4>(),
    .int3 = pack_kernels<Int3>(),
    .int2 = pack_kernels<Int2>(),
    .quantize_chunks = quantize_chunks,
    .quantize_columns = quantize_columns,
    .quantize_midrise = quantize_midrise,
    .max_magnitude = max_magnitude,
    .widen_range = widen_range,
    .widen_columns = widen_columns,
    .residual = residual,
    .f32_to_f16 = f32_to_f16,
    .f16_to_f32 = f16_to_f32,
    .f32_to_bf16 = f32_to_bf16,
    .bf16_to_f32 = bf16_to_f32,
};

}  // namespace kvspan::detail
