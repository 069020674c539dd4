// SPDX-License-Identifier: Apache-2.0
// The gain of a token, which its components c are divided by before they are coded: the
// root mean square of c_i / sigma_i, or more where numbers would be cut off at what their codes
// reach. With gain g a component is off by about g^2 fine_i, or by (|c_i| - g reach_i)^2 where it
// is beyond g reach_i; the sum of both is convex in g and least where
//     g = sum' reach_i |c_i| / (sum fine_i + sum' reach_i^2)      sum': of those beyond g reach_i
// which is met from the root mean square on in a few rounds. Never below it: the sum takes errors
// of small numbers for even, and trusts gains that leave none of them.
#pragma once

#include <cstdint>

namespace kvspan {

struct GainRule {
  static constexpr int kRounds = 2;

  std::int32_t places = 0;               // a multiple of 4
  const float* inverse_sigma = nullptr;  // [places], 0 where a component has no say
  const float* reach = nullptr;          // [places], of codes with gain 1; 0 at empty places
  float stored = 0.0f;                   // components
  float fine = 0.0f;                     // sum of fine_i

  // Of c [places]; above 0, or 0 where c is.
  float gain_of(const float* c) const noexcept;
};

}  // namespace kvspan
