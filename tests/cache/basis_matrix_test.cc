// SPDX-License-Identifier: Apache-2.0
#include "cache/code/basis_matrix.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/random.h"

namespace kvspan {
namespace {

// [rows, cols] with orthonormal columns: products of reflections.
std::vector<float> orthonormal(std::size_t rows, std::size_t cols, Random& random) {
  std::vector<double> b(rows * cols);
  for (std::size_t i = 0; i < cols; ++i) b[i * cols + i] = 1.0;
  for (int k = 0; k < 3; ++k) {
    std::vector<double> v(rows), s(cols);
    double length = 0.0;
    for (double& x : v) {
      x = random.normal();
      length += x * x;
    }
    for (std::size_t j = 0; j < rows; ++j) {
      for (std::size_t i = 0; i < cols; ++i) s[i] += v[j] * b[j * cols + i];
    }
    for (std::size_t j = 0; j < rows; ++j) {
      for (std::size_t i = 0; i < cols; ++i) b[j * cols + i] -= 2.0 * v[j] * s[i] / length;
    }
  }
  return {b.begin(), b.end()};
}

TEST(BasisMatrix, KeepsItsPromisesInEveryStore) {
  Random random(5);
  for (const auto& [rows, cols] :
       {std::pair<std::size_t, std::size_t>(8, 1), {64, 38}, {192, 140}}) {
    const std::vector<float> numbers = orthonormal(rows, cols, random);
    for (const BasisStore store : {BasisStore::kF32, BasisStore::kF16, BasisStore::kInt8}) {
      const BasisMatrix basis(store, rows, cols, numbers.data(), {}, MemoryKind::kBases, nullptr);
      const std::vector<float> kept = basis.decoded();
      for (std::size_t i = 0; i < cols; ++i) {
        double most = 0.0, length = 0.0;
        for (std::size_t j = 0; j < rows; ++j) {
          most = std::max(most, std::abs(double{numbers[j * cols + i]}));
          length += double{kept[j * cols + i]} * double{kept[j * cols + i]};
        }
        // int8: half a step, and the length is set to 1 again, which moves a number by less than
        // the roundings' share of it: sqrt(rows) / 254 of the largest.
        const double step = most / 127.0, share = 0.5 * std::sqrt(double(rows)) * step;
        for (std::size_t j = 0; j < rows; ++j) {
          const double x = numbers[j * cols + i], off = std::abs(kept[j * cols + i] - x);
          EXPECT_LE(off, store == BasisStore::kF32 ? 0.0
                         : store == BasisStore::kF16
                             ? std::abs(x) * 0x1p-11 + 0x1p-25
                             : 0.5 * step + std::abs(x) * 1.1 * share + 1e-6);
        }
        if (store == BasisStore::kInt8) {
          EXPECT_NEAR(length, 1.0, 1e-5);
        }
      }
      // Stored again, the same bytes.
      const BasisMatrix again(store, rows, cols, kept.data(), basis.scales(), MemoryKind::kBases,
                              nullptr);
      EXPECT_EQ(again.decoded(), kept);
    }
  }
}

// In every store, of rows 32 to 71.
void check_products(std::size_t rows, std::size_t width, const std::vector<float>& numbers,
                    Random& random) {
  for (const BasisStore store : {BasisStore::kF32, BasisStore::kF16, BasisStore::kInt8}) {
    const BasisMatrix basis(store, rows, width, numbers.data(), {}, MemoryKind::kBases, nullptr);
    const std::vector<float> kept = basis.decoded();
    const std::size_t first = 32, count = 40;
    std::vector<float> x(count), c(width), sums(width, 1.0f), dots(count);
    for (float& value : x) value = float(random.normal());
    for (float& value : c) value = float(random.normal());
    basis.add_rows(first, count, x.data(), sums.data());
    basis.dot_rows(first, count, c.data(), dots.data());
    // f32 sums of n products: n eps sum |a b|.
    for (std::size_t i = 0; i < width; ++i) {
      double exact = 1.0, size = 1.0;
      for (std::size_t j = 0; j < count; ++j) {
        const double product = double{x[j]} * double{kept[(first + j) * width + i]};
        exact += product;
        size += std::abs(product);
      }
      EXPECT_NEAR(sums[i], exact, double(count) * 0x1p-23 * size);
    }
    for (std::size_t j = 0; j < count; ++j) {
      double exact = 0.0, size = 0.0;
      for (std::size_t i = 0; i < width; ++i) {
        const double product = double{c[i]} * double{kept[(first + j) * width + i]};
        exact += product;
        size += std::abs(product);
      }
      EXPECT_NEAR(dots[j], exact, double(width) * 0x1p-23 * size);
    }
  }
}

TEST(BasisMatrix, ProductsAreThoseOfTheNumbersItKeeps) {
  Random random(6);
  check_products(160, 140, orthonormal(160, 140, random), random);
  // The identity, and what is nearly it.
  std::vector<float> one(96 * 96);
  for (std::size_t i = 0; i < 96; ++i) one[i * 97] = 1.0f;
  check_products(96, 96, one, random);
  one[40 * 96 + 7] = 0.5f;
  check_products(96, 96, one, random);
}

}  // namespace
}  // namespace kvspan
