// SPDX-License-Identifier: Apache-2.0
// dense_kernels.h in vectors of `Lanes` doubles (compiler vector extensions). Included only by the
// source file of one instruction set, which chooses Lanes; the anonymous namespace keeps each
// file's code to itself, so that no function built for a newer processor is linked into an older
// path. Calls nothing from the standard library for the same reason.
#pragma once

#include <cstddef>

#include "linalg/dense_kernels.h"

namespace kvspan::detail {
namespace {

template <int Lanes>
struct VectorOf;
template <>
struct VectorOf<2> {
  typedef double Type __attribute__((vector_size(16), may_alias));
};
template <>
struct VectorOf<4> {
  typedef double Type __attribute__((vector_size(32), may_alias));
};
template <>
struct VectorOf<8> {
  typedef double Type __attribute__((vector_size(64), may_alias));
};

// Wide: the vectors of a strip in rotate_rows; twice as many must fit the register file, and 8
// hide the latency of a multiply-add.
template <int Lanes, std::size_t Wide>
struct VectorKernels {
  using Vec = typename VectorOf<Lanes>::Type;
  static constexpr std::size_t kLanes = Lanes;
  static constexpr std::size_t kBlock = Lanes <= 4 ? 4 : 8;  // columns of a tile in the update

  static Vec load(const double* p) { return *reinterpret_cast<const Vec*>(p); }
  static void store(double* p, Vec x) { *reinterpret_cast<Vec*>(p) = x; }
  static double sum(Vec x) {
    double total = x[0];
    for (int i = 1; i < Lanes; ++i) total += x[i];
    return total;
  }

  // A tile of 4 rows and 8 columns stays in registers while the k rows pass.
  static void add_outer(double* C, std::size_t c_stride, const double* A, std::size_t a_stride,
                        const double* B, std::size_t b_stride, std::size_t m, std::size_t n,
                        std::size_t k) noexcept {
    constexpr std::size_t kVecs = 8 / kLanes;
    for (std::size_t i = 0; i < m; i += 4) {
      for (std::size_t j = 0; j < n; j += 8) {
        double* tile = C + i * c_stride + j;
        Vec acc[4][kVecs];
        for (std::size_t r = 0; r < 4; ++r) {
          for (std::size_t q = 0; q < kVecs; ++q) {
            acc[r][q] = load(tile + r * c_stride + q * kLanes);
          }
        }
        const double* a = A + i;
        const double* b = B + j;
        for (std::size_t t = 0; t < k; ++t, a += a_stride, b += b_stride) {
          Vec row[kVecs];
          for (std::size_t q = 0; q < kVecs; ++q) row[q] = load(b + q * kLanes);
          for (std::size_t r = 0; r < 4; ++r) {
            for (std::size_t q = 0; q < kVecs; ++q) acc[r][q] += a[r] * row[q];
          }
        }
        for (std::size_t r = 0; r < 4; ++r) {
          for (std::size_t q = 0; q < kVecs; ++q) {
            store(tile + r * c_stride + q * kLanes, acc[r][q]);
          }
        }
      }
    }
  }

  // 4 rows by kVecs vectors at a time, each stage for all of them before the next: the dependent
  // multiply-adds of one element would otherwise wait for each other. Left of the diagonal block a
  // tile serves two products: its rows with u, and its columns with the 4 entries of u beside it.
  template <bool Mirrored>
  static inline __attribute__((always_inline)) void update_tile(
      double* tile, std::size_t stride, const double* v, const double* w, const double* u,
      double* p, const double (&vi)[4], const double (&wi)[4], const double (&ui)[4],
      Vec (&dot)[4]) {
    constexpr std::size_t kVecs = kBlock / kLanes;
    Vec a[kVecs][4];
    for (std::size_t q = 0; q < kVecs; ++q) {
      for (std::size_t r = 0; r < 4; ++r) a[q][r] = load(tile + r * stride + q * kLanes);
    }
    for (std::size_t q = 0; q < kVecs; ++q) {
      const Vec wj = load(w + q * kLanes);
      for (std::size_t r = 0; r < 4; ++r) a[q][r] -= vi[r] * wj;
    }
    for (std::size_t q = 0; q < kVecs; ++q) {
      const Vec vj = load(v + q * kLanes);
      for (std::size_t r = 0; r < 4; ++r) a[q][r] -= wi[r] * vj;
    }
    for (std::size_t q = 0; q < kVecs; ++q) {
      for (std::size_t r = 0; r < 4; ++r) store(tile + r * stride + q * kLanes, a[q][r]);
    }
    for (std::size_t q = 0; q < kVecs; ++q) {
      const Vec uj = load(u + q * kLanes);
      for (std::size_t r = 0; r < 4; ++r) dot[r] += a[q][r] * uj;
    }
    if constexpr (Mirrored) {
      for (std::size_t q = 0; q < kVecs; ++q) {
        const Vec even = load(p + q * kLanes) + ui[0] * a[q][0] + ui[2] * a[q][2];
        const Vec odd = ui[1] * a[q][1] + ui[3] * a[q][3];
        store(p + q * kLanes, even + odd);
      }
    }
  }
  static void update_and_multiply(double* A, std::size_t stride, std::size_t first, std::size_t n,
                                  const double* v, const double* w, const double* u,
                                  double* p) noexcept {
    const std::size_t left = first / kBlock * kBlock;  // where v, w and u are 0, nothing changes
    for (std::size_t i = left; i < n; ++i) p[i] = 0.0;
    for (std::size_t i = first / 4 * 4; i < n; i += 4) {
      Vec dot[4];
      double vi[4], wi[4], ui[4];
      for (std::size_t r = 0; r < 4; ++r) {
        dot[r] = Vec{};
        vi[r] = v[i + r];
        wi[r] = w[i + r];
        ui[r] = u[i + r];
      }
      double* rows = A + i * stride;
      const std::size_t block = i / kBlock * kBlock;
      std::size_t j = left;
      for (; j < block; j += kBlock) {
        update_tile<true>(rows + j, stride, v + j, w + j, u + j, p + j, vi, wi, ui, dot);
      }
      for (; j < block + kBlock; j += kBlock) {
        update_tile<false>(rows + j, stride, v + j, w + j, u + j, p + j, vi, wi, ui, dot);
      }
      for (std::size_t r = 0; r < 4; ++r) p[i + r] += sum(dot[r]);
    }
  }

  // Two rows change places as the moving one: x, loaded, rotates with `moving`, which is stored;
  // x moves on. A rotation is three shears, one multiply-add each, where the textbook form takes
  // four operations.
  template <std::size_t Vecs>
  static inline __attribute__((always_inline)) void rotate(double* row, std::size_t stride,
                                                           Vec (&moving)[Vecs], Vec (&x)[Vecs],
                                                           double s, double t) {
    double* next = row + stride;
    asm("" : "+r"(next));  // its own register: a store relative to another costs an operation more
    for (std::size_t q = 0; q < Vecs; ++q) x[q] = load(row + q * kLanes);
    for (std::size_t q = 0; q < Vecs; ++q) x[q] -= t * moving[q];
    for (std::size_t q = 0; q < Vecs; ++q) moving[q] += s * x[q];
    for (std::size_t q = 0; q < Vecs; ++q) store(next + q * kLanes, moving[q]);
    for (std::size_t q = 0; q < Vecs; ++q) x[q] -= t * moving[q];
  }
  // A strip of Vecs vectors goes through all rotations while the moving row stays in registers.
  // `due` counts columns rotated; every cols / 2 of them pay for half a rotation aside.
  template <std::size_t Vecs>
  static inline __attribute__((always_inline)) void rotate_strip(
      double* strip, std::size_t stride, std::size_t cols, std::size_t low, std::size_t high,
      const double* sines, const double* halves, QlSweep& sweep, std::size_t& due) {
    const auto work_aside = [&]() __attribute__((always_inline)) {
      due += 2 * Vecs * kLanes;
      if (due < cols / 2) return;
      due -= cols / 2;
      advance_half(sweep);
    };
    Vec a[Vecs], b[Vecs];
    for (std::size_t q = 0; q < Vecs; ++q) a[q] = load(strip + high * stride + q * kLanes);
    std::size_t i = high;
    for (; i >= low + 2; i -= 2) {
      rotate<Vecs>(strip + (i - 1) * stride, stride, a, b, sines[i - 1], halves[i - 1]);
      rotate<Vecs>(strip + (i - 2) * stride, stride, b, a, sines[i - 2], halves[i - 2]);
      work_aside();
    }
    if (i > low) {
      rotate<Vecs>(strip + low * stride, stride, a, b, sines[low], halves[low]);
      for (std::size_t q = 0; q < Vecs; ++q) a[q] = b[q];
    }
    for (std::size_t q = 0; q < Vecs; ++q) store(strip + low * stride + q * kLanes, a[q]);
  }
  static void rotate_rows(double* Z, std::size_t stride, std::size_t cols, std::size_t low,
                          std::size_t high, const double* sines, const double* halves,
                          QlSweep& aside) noexcept {
    QlSweep sweep = aside;  // a copy whose address stays here can live in registers
    std::size_t j = 0, due = 0;
    for (; j + Wide * kLanes <= cols; j += Wide * kLanes) {
      rotate_strip<Wide>(Z + j, stride, cols, low, high, sines, halves, sweep, due);
    }
    for (; j < cols; j += 8) {
      rotate_strip<8 / kLanes>(Z + j, stride, cols, low, high, sines, halves, sweep, due);
    }
    finish(sweep);
    aside = sweep;
  }

  // 4 rows at a time.
  static void reflect_rows(double* Z, std::size_t stride, std::size_t first, std::size_t cols,
                           std::size_t rows, const double* v, double tau) noexcept {
    for (std::size_t i = 0; i < rows; i += 4) {
      double* row = Z + i * stride;
      Vec dot[4];
      for (std::size_t r = 0; r < 4; ++r) dot[r] = Vec{};
      for (std::size_t j = first / kLanes * kLanes; j < cols; j += kLanes) {
        const Vec vj = load(v + j);
        for (std::size_t r = 0; r < 4; ++r) dot[r] += load(row + r * stride + j) * vj;
      }
      double scale[4];
      for (std::size_t r = 0; r < 4; ++r) scale[r] = tau * sum(dot[r]);
      for (std::size_t j = first / kLanes * kLanes; j < cols; j += kLanes) {
        const Vec vj = load(v + j);
        for (std::size_t r = 0; r < 4; ++r) {
          store(row + r * stride + j, load(row + r * stride + j) - scale[r] * vj);
        }
      }
    }
  }

  // One pass for both products, one for both updates: w . (z - s v) = w . z - s (v . w).
  static void reflect_rows_twice(double* Z, std::size_t stride, std::size_t first, std::size_t cols,
                                 std::size_t rows, const double* v, double v_tau, const double* w,
                                 double w_tau, double vw) noexcept {
    for (std::size_t i = 0; i < rows; i += 4) {
      double* row = Z + i * stride;
      Vec v_dot[4], w_dot[4];
      for (std::size_t r = 0; r < 4; ++r) v_dot[r] = w_dot[r] = Vec{};
      for (std::size_t j = first / kLanes * kLanes; j < cols; j += kLanes) {
        const Vec vj = load(v + j), wj = load(w + j);
        for (std::size_t r = 0; r < 4; ++r) {
          const Vec z = load(row + r * stride + j);
          v_dot[r] += z * vj;
          w_dot[r] += z * wj;
        }
      }
      double v_scale[4], w_scale[4];
      for (std::size_t r = 0; r < 4; ++r) {
        v_scale[r] = v_tau * sum(v_dot[r]);
        w_scale[r] = w_tau * (sum(w_dot[r]) - v_scale[r] * vw);
      }
      for (std::size_t j = first / kLanes * kLanes; j < cols; j += kLanes) {
        const Vec vj = load(v + j), wj = load(w + j);
        Vec z[4];
        for (std::size_t r = 0; r < 4; ++r) z[r] = load(row + r * stride + j) - v_scale[r] * vj;
        for (std::size_t r = 0; r < 4; ++r) store(row + r * stride + j, z[r] - w_scale[r] * wj);
      }
    }
  }

  static constexpr DenseKernels table() {
    return {add_outer, update_and_multiply, rotate_rows, reflect_rows, reflect_rows_twice};
  }
};

}  // namespace
}  // namespace kvspan::detail
