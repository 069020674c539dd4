// SPDX-License-Identifier: Apache-2.0
// What the NEON files of attention share. Everything is inlined or in an anonymous namespace: no
// code compiled with their flags may be linked into other files.
#pragma once

#include <arm_neon.h>

#include <cstddef>

#include "attention/kernels/kernels.h"

namespace kvspan::detail {

void score_rows_neon(const float* queries, std::int32_t rows, std::int32_t dim,
                     const RowsView& keys, std::int32_t tokens, const std::byte* next,
                     float* scores, std::int32_t score_stride) noexcept;
void weigh_rows_neon(const float* weights, std::int32_t weight_stride, std::int32_t rows,
                     const RowsView& values, std::int32_t dim, std::int32_t tokens,
                     const std::byte* next, float* out) noexcept;
void score_codes_neon(const IntegerQueries& queries, std::int32_t rows, std::int32_t dim,
                      const CodeRows& keys, std::int32_t tokens, bool add, float* scores,
                      std::int32_t score_stride) noexcept;
void weigh_codes_neon(const float* weights, std::int32_t weight_stride, std::int32_t rows,
                      const CodeRows& values, std::int32_t dim, std::int32_t tokens, float* out,
                      std::int32_t out_stride) noexcept;

namespace {

// use.template operator()<R>() with R = rows, 1 to 4: as many as keep their sums in registers.
template <class Use>
[[gnu::always_inline]] inline void with_rows(std::int32_t rows, const Use& use) {
  switch (rows) {
    case 1:
      return use.template operator()<1>();
    case 2:
      return use.template operator()<2>();
    case 3:
      return use.template operator()<3>();
    default:
      return use.template operator()<4>();
  }
}

// sum += a * b, in the register that sum is in: left to itself the compiler copies accumulators to
// and fro, in the pipes that the multiplications need.
[[gnu::always_inline]] inline void accumulate(float32x4_t& sum, float32x4_t a, float32x4_t b) {
  asm("fmla %0.4s, %1.4s, %2.4s" : "+w"(sum) : "w"(a), "w"(b));
}
// sum += a * b[kLane].
template <int kLane>
[[gnu::always_inline]] inline void accumulate_lane(float32x4_t& sum, float32x4_t a, float32x4_t b) {
  asm("fmla %0.4s, %1.4s, %2.s[%3]" : "+w"(sum) : "w"(a), "w"(b), "i"(kLane));
}

// A constant for an instruction that overwrites it, from memory each time: the load pipes have time
// for that, where a copy of a register would take its turn in the pipes of the arithmetic. The
// instruction's operands only tell one use from another: else the compiler would load once and
// copy.
template <class F, class T, class A, class B>
[[gnu::always_inline]] inline F fresh(const T (&four)[4], A a, B b) {
  F x;
  asm("ldr %q0, %1" : "=w"(x) : "Q"(four), "w"(a), "w"(b));
  return x;
}

// Asks for bytes that will be read soon, none if `from` is null. A few lines at a time: requests
// beyond what the memory system can have under way hold up the arithmetic.
[[gnu::always_inline]] inline void ask_for(const std::byte* from, std::ptrdiff_t offset,
                                           std::ptrdiff_t bytes) {
  if (from == nullptr) return;
  for (std::ptrdiff_t i = 0; i < bytes; i += 64) __builtin_prefetch(from + offset + i, 0, 2);
}

struct Pair {
  float32x4_t low, high;
};
[[gnu::always_inline]] inline Pair load8(const float16_t* p) {
  const float16x8_t h = vld1q_f16(p);
  return {vcvt_f32_f16(vget_low_f16(h)), vcvt_high_f32_f16(h)};
}
[[gnu::always_inline]] inline Pair load8(const float* p) {
  return {vld1q_f32(p), vld1q_f32(p + 4)};
}

template <class T>
const T* rows_of(const RowsView& rows) {
  return reinterpret_cast<const T*>(rows.data);
}

}  // namespace
}  // namespace kvspan::detail
