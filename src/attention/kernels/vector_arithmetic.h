// SPDX-License-Identifier: Apache-2.0
// What the vector types of all processors have alike: the compiler's own operators on vectors, which are what its
// intrinsics of that kind are made of.
#pragma once

namespace kvspan::detail {
namespace {  // every file that includes this is compiled for its own instructions

struct VectorArithmetic {
  template <class F>
  static F add(F a, F b) { return a + b; }
  template <class F>
  static F sub(F a, F b) { return a - b; }
  template <class F>
  static F mul(F a, F b) { return a * b; }
  template <class F>
  static F div(F a, F b) { return a / b; }
};

}  // namespace
}  // namespace kvspan::detail
