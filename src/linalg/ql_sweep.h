// SPDX-License-Identifier: Apache-2.0
// One sweep of the implicit QL iteration on a symmetric tridiagonal matrix, rotation by rotation.
// Each rotation waits for a square root and a division of the one before, which is why the kernel
// that applies the previous sweep to the eigenvectors advances this one on the side: the two do not
// depend on each other, and the waiting costs nothing.
#pragma once

#include <cstddef>

namespace kvspan::detail {

struct QlSweep {
  double* diagonal = nullptr;
  double* below = nullptr;   // below[i] joins rows i and i+1
  double* sines = nullptr;   // written: rotation i turns rows i and i+1
  double* halves = nullptr;  // written: tangents of the half angles, at most 1 in magnitude
  std::size_t low = 0;       // the sweep runs over rows low..high
  std::size_t high = 0;
  std::size_t next = 0;   // rotation next-1 is due; next == low: finished
  std::size_t first = 0;  // rotations first..high-1 were made: low, or above it after a split
  double g = 0.0, sine = 1.0, cosine = 1.0, carried = 0.0;
  double f = 0.0, b = 0.0, squared = 0.0, length = 0.0;  // of the rotation under way
  bool under_way = false;
};

// Internal linkage: this code is compiled once per instruction set.
namespace {

inline void start(QlSweep& q, std::size_t low, std::size_t high) {
  const double* d = q.diagonal;
  const double step = q.below[low];
  const double middle = (d[low + 1] - d[low]) / (2.0 * step);
  const double root = __builtin_sqrt(middle * middle + 1.0);
  q.g = d[high] - d[low] + step / (middle + __builtin_copysign(root, middle));
  q.sine = q.cosine = 1.0;
  q.carried = 0.0;
  q.low = q.first = low;
  q.high = q.next = high;
}

// A rotation has two halves, each about as long as its square root or its division takes.
inline void open_rotation(QlSweep& q) {
  const double entry = q.below[q.next - 1];
  q.f = q.sine * entry;
  q.b = q.cosine * entry;
  q.squared = q.f * q.f + q.g * q.g;
  q.length = __builtin_sqrt(q.squared);
  q.under_way = true;
}

inline void close_rotation(QlSweep& q) {
  const std::size_t i = --q.next;
  double* d = q.diagonal;
  double* e = q.below;
  q.under_way = false;
  if (q.squared < 1e-280) {  // |T| is near 1: the matrix falls apart between i and i+1
    d[i + 1] -= q.carried;
    e[i + 1] = 0.0;
    e[q.high] = 0.0;
    q.first = i + 1;  // the rotations so far stand
    q.next = q.low;
    return;
  }
  // The sign of the new entry r is free; this one keeps the cosine positive, so that half the angle
  // is at most 45 degrees and three shears rotate without loss. One division serves 1/r and the
  // tangent f / (r + g).
  const double r = __builtin_copysign(q.length, q.g);
  const double inverse = 1.0 / (q.squared + r * q.g);
  const double unit = inverse * (r + q.g);
  const double sine = q.f * unit;
  const double cosine = q.g * unit;
  const double base = d[i + 1] - q.carried;
  const double t = (d[i] - base) * sine + 2.0 * cosine * q.b;
  e[i + 1] = r;
  q.carried = sine * t;
  d[i + 1] = base + q.carried;
  q.g = cosine * t - q.b;
  q.sine = sine;
  q.cosine = cosine;
  q.sines[i] = sine;
  q.halves[i] = q.f * r * inverse;
  if (i == q.low) {
    d[i] -= q.carried;
    e[i] = q.g;
    e[q.high] = 0.0;
  }
}

inline void advance_half(QlSweep& q) {
  if (q.under_way) {
    close_rotation(q);
  } else if (q.next > q.low) {
    open_rotation(q);
  }
}

inline void finish(QlSweep& q) {
  if (q.under_way) close_rotation(q);
  while (q.next > q.low) {
    open_rotation(q);
    close_rotation(q);
  }
}

}  // namespace
}  // namespace kvspan::detail
