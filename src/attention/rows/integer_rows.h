// SPDX-License-Identifier: Apache-2.0
// Integer coefficients as attention reads them without making floats of them: which codecs allow
// it, their scales by group, their codes as bytes, and queries rounded to integers.
//
// Groups of components that share a scale must be whole multiples of 8 components, or all of a row
// (one scale per row, tile, head or tensor). Codecs with a scale per component are decoded instead.
#pragma once

#include <cstdint>

#include "attention/kernels/kernels.h"
#include "cache/code/coded_side.h"

namespace kvspan::detail {

struct IntegerLayout {
  bool usable = false;
  bool packed = false;     // codes lie in less than a byte, or rows are not a multiple of 8 long
  bool offsets = false;    // numbers are scale * code + offset
  std::int32_t width = 0;  // of a row of bytes, padded
  std::int32_t group = 0;  // components, the last group may have fewer
  std::int32_t groups = 0;
};

IntegerLayout integer_layout(const Code& code) noexcept;

// Scales, and offsets where there are any, of rows first .. first + n - 1: group g of row t at
// [g * stride + t]. `work` holds 2 * n * groups floats. Memory is for kScaleRows rows of the most
// groups there can be.
inline constexpr std::int32_t kScaleRows = 64;
void load_scales(const CodedSide::Part& part, const IntegerLayout& layout, std::int32_t first,
                 std::int32_t n, std::int32_t stride, float* scale, float* offset,
                 float* work) noexcept;

// The codes of those rows as bytes: where they are stored, or unpacked into `to` [n][width],
// whose padding is zeros.
const std::int8_t* load_codes(const CodedSide::Part& part, const IntegerLayout& layout,
                              std::int32_t first, std::int32_t n, std::int8_t* to) noexcept;

// A query row [layout.width], rounded by groups to integers up to kQueryLimit: group g's numbers q
// become scale[g * stride] * numbers, off by at most kQueryRounding max|q| each (scales underflow
// below 2^-110). sum[g * stride] gets the group's sum of q.
inline constexpr double kQueryRounding = 0.5001 / kQueryLimit;
void round_query(const float* q, const IntegerLayout& layout, std::int32_t stride,
                 std::int16_t* numbers, float* scale, float* sum) noexcept;

}  // namespace kvspan::detail
