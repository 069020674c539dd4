// SPDX-License-Identifier: Apache-2.0
// What Hadamard's vector kernels have in common: partners that are whole vectors apart. For any vector type
// of the compiler that has + and -. Every kernel file has a copy of its own, compiled with its flags.
#pragma once

#include <cstddef>
#include <cstring>

namespace kvspan::detail {
namespace {

template <class Vector>
inline Vector load_floats(const float* from) {
  Vector v;
  std::memcpy(&v, from, sizeof v);
  return v;
}
template <class Vector>
inline void store_floats(float* to, Vector v) {
  std::memcpy(to, &v, sizeof v);
}

template <class Vector>
inline void butterfly(Vector& a, Vector& b) {
  const Vector difference = a - b;
  a = a + b;
  b = difference;
}

// Distances from 16 on, two per pass. size: a power of two, at least 16.
template <class Vector>
inline void hadamard_passes_from_16(float* x, std::size_t size) {
  constexpr std::size_t kLanes = sizeof(Vector) / sizeof(float);
  std::size_t h = 16;
  for (; 4 * h <= size; h *= 4) {
    for (std::size_t block = 0; block < size; block += 4 * h) {
      for (float* p = x + block; p < x + block + h; p += kLanes) {
        auto a = load_floats<Vector>(p), b = load_floats<Vector>(p + h);
        auto c = load_floats<Vector>(p + 2 * h), d = load_floats<Vector>(p + 3 * h);
        butterfly(a, b);
        butterfly(c, d);
        butterfly(a, c);
        butterfly(b, d);
        store_floats(p, a);
        store_floats(p + h, b);
        store_floats(p + 2 * h, c);
        store_floats(p + 3 * h, d);
      }
    }
  }
  if (h == size) return;
  for (float* p = x; p < x + h; p += kLanes) {
    auto a = load_floats<Vector>(p), b = load_floats<Vector>(p + h);
    butterfly(a, b);
    store_floats(p, a);
    store_floats(p + h, b);
  }
}

}  // namespace
}  // namespace kvspan::detail
