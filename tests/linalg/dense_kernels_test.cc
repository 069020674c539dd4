// SPDX-License-Identifier: Apache-2.0
// Every instruction set of this processor, and the vector widths of the others (which the compiler
// splits into what there is), against the plain loops.
#include "linalg/dense_kernels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "base/random.h"
#include "linalg/dense_kernels_body.h"
#include "linalg/panel.h"

namespace kvspan::detail {
namespace {

struct NamedKernels {
  std::string name;
  DenseKernels kernels;
};

std::vector<NamedKernels> all_kernels() {
  std::vector<NamedKernels> all{{"lanes 2", VectorKernels<2, 8>::table()},
                                {"lanes 4", VectorKernels<4, 4>::table()},
                                {"lanes 8", VectorKernels<8, 8>::table()}};
  for (const CpuLevel level : available_cpu_levels()) {
    all.push_back({std::string(name_of(level)), dense_kernels(level)});
  }
  return all;
}

Panel random_panel(std::size_t rows, std::size_t cols, std::uint64_t seed) {
  Random random(seed);
  Panel panel(rows, cols);
  for (std::size_t i = 0; i < rows; ++i) {
    for (std::size_t j = 0; j < cols; ++j) panel(i, j) = random.normal();
  }
  return panel;
}

Panel copy_of(const Panel& panel) {
  return Panel::of(panel.view());
}

// Entries are near 1 and each result sums `terms` products in some order: the order costs at most
// terms^2 / 2 roundings of 2^-53 of the largest partial sum, itself below 16 terms for normal
// numbers under 4.
void expect_near(const Panel& a, const Panel& b, std::size_t terms, const std::string& where) {
  const double bound = 16.0 * static_cast<double>(terms * terms) * 0x1p-53;
  for (std::size_t i = 0; i < a.rows(); ++i) {
    for (std::size_t j = 0; j < a.stride(); ++j) {
      ASSERT_NEAR(a.row(i)[j], b.row(i)[j], bound) << where << " at " << i << ", " << j;
    }
  }
}

TEST(DenseKernels, AddOuterMatchesTheReferenceAndIsExactInAnySplit) {
  for (const auto& [name, kernels] : all_kernels()) {
    for (const std::size_t k : {1u, 2u, 5u, 31u}) {
      const Panel A = random_panel(k, 16, k), B = random_panel(k, 24, k + 100);
      Panel whole(16, 24), reference(16, 24), split(16, 24);
      kernels.add_outer(whole.row(0), whole.stride(), A.row(0), A.stride(), B.row(0), B.stride(),
                        16, 24, k);
      kDenseReference.add_outer(reference.row(0), reference.stride(), A.row(0), A.stride(),
                                B.row(0), B.stride(), 16, 24, k);
      expect_near(whole, reference, k, name);
      for (std::size_t t = 0; t < k; ++t) {
        kernels.add_outer(split.row(0), split.stride(), A.row(t), A.stride(), B.row(t), B.stride(),
                          16, 24, 1);
      }
      for (std::size_t i = 0; i < 16; ++i) {
        for (std::size_t j = 0; j < 24; ++j) ASSERT_EQ(whole(i, j), split(i, j)) << name;
      }
    }
  }
}

TEST(DenseKernels, UpdateAndMultiplyMatchesTheReferenceFromEveryFirstRow) {
  for (const auto& [name, kernels] : all_kernels()) {
    for (const std::size_t n : {1u, 3u, 8u, 21u, 32u}) {
      for (std::size_t first = 0; first < n; ++first) {
        Panel A = random_panel(n, n, n);
        for (std::size_t i = 0; i < n; ++i) {
          for (std::size_t j = 0; j < i; ++j) A(j, i) = A(i, j);
        }
        Panel vectors = random_panel(3, n, first);
        for (std::size_t i = 0; i < 3; ++i) std::fill(vectors.row(i), vectors.row(i) + first, 0.0);
        Panel got = copy_of(A), expected = copy_of(A), p(1, n), q(1, n);
        kernels.update_and_multiply(got.row(0), got.stride(), first, n, vectors.row(0),
                                    vectors.row(1), vectors.row(2), p.row(0));
        kDenseReference.update_and_multiply(expected.row(0), expected.stride(), first, n,
                                            vectors.row(0), vectors.row(1), vectors.row(2),
                                            q.row(0));
        for (std::size_t i = first; i < n; ++i) {
          ASSERT_NEAR(p(0, i), q(0, i), 16.0 * 16.0 * double(n * n) * 0x1p-53)
              << name << " n=" << n << " first=" << first << " row " << i;
          // Blocks on and below the diagonal; a kernel with smaller blocks leaves the rest alone.
          for (std::size_t j = first; j <= i; ++j) {
            ASSERT_NEAR(got(i, j), expected(i, j), 64 * 0x1p-53) << name << " " << i << "," << j;
          }
        }
      }
    }
  }
}

TEST(DenseKernels, RotateRowsMatchesTheReferenceAndFinishesTheSweepAside) {
  for (const auto& [name, kernels] : all_kernels()) {
    for (const std::size_t n : {2u, 3u, 9u, 40u, 64u, 72u}) {
      for (const std::size_t low : {std::size_t{0}, n / 3}) {
        Random random(n + low);
        std::vector<double> sines(n), halves(n);
        for (std::size_t i = 0; i < n; ++i) {
          const double angle = (random.uniform() - 0.5) * 3.14159;
          sines[i] = std::sin(angle);
          halves[i] = std::tan(angle / 2);
        }
        const Panel Z = random_panel(n, n, n);
        Panel got = copy_of(Z), expected = copy_of(Z);
        const auto make_sweep = [&](std::vector<double>& store) {
          store.assign(4 * n, 0.0);
          for (std::size_t i = 0; i < n; ++i) {
            store[i] = double(i) + 0.25;
            store[n + i] = i + 1 < n ? 0.5 : 0.0;
          }
          QlSweep sweep{store.data(), store.data() + n, store.data() + 2 * n, store.data() + 3 * n};
          start(sweep, 0, n - 1);
          return sweep;
        };
        std::vector<double> a, b;
        QlSweep aside = make_sweep(a), reference_aside = make_sweep(b);
        kernels.rotate_rows(got.row(0), got.stride(), got.stride(), low, n - 1, sines.data(),
                            halves.data(), aside);
        kDenseReference.rotate_rows(expected.row(0), expected.stride(), expected.stride(), low,
                                    n - 1, sines.data(), halves.data(), reference_aside);
        expect_near(got, expected, n, name);
        EXPECT_EQ(aside.next, aside.low) << name;
        EXPECT_FALSE(aside.under_way);
        for (std::size_t i = 0; i < 4 * n; ++i) {
          // n steps, each a few roundings of numbers up to n, forgotten at a bounded rate.
          ASSERT_NEAR(a[i], b[i], 64.0 * double(n * n) * 0x1p-53) << name << " entry " << i;
        }
      }
    }
  }
}

TEST(DenseKernels, ReflectRowsMatchesTheReferenceOnceAndTwice) {
  for (const auto& [name, kernels] : all_kernels()) {
    for (const std::size_t n : {1u, 5u, 8u, 19u}) {
      for (std::size_t first = 0; first < n; ++first) {
        const Panel Z = random_panel(n, n, n);
        Panel vectors = random_panel(2, n, first);
        for (std::size_t i = 0; i < 2; ++i) std::fill(vectors.row(i), vectors.row(i) + first, 0.0);
        const double vw = inner_product(vectors.row(0), vectors.row(1), n);
        Panel got = copy_of(Z), expected = copy_of(Z);
        kernels.reflect_rows(got.row(0), got.stride(), first, n, n, vectors.row(0), 0.1);
        kDenseReference.reflect_rows(expected.row(0), expected.stride(), first, n, n,
                                     vectors.row(0), 0.1);
        expect_near(got, expected, 4 * n, name);
        kernels.reflect_rows_twice(got.row(0), got.stride(), first, n, n, vectors.row(0), 0.1,
                                   vectors.row(1), 0.05, vw);
        kDenseReference.reflect_rows_twice(expected.row(0), expected.stride(), first, n, n,
                                           vectors.row(0), 0.1, vectors.row(1), 0.05, vw);
        expect_near(got, expected, 16 * n, name);
      }
    }
  }
}

}  // namespace
}  // namespace kvspan::detail
