// SPDX-License-Identifier: Apache-2.0
// Matrices of type Q4_1, held as Q4_0 and offsets, against the numbers that ggml itself reads from
// them.
#include "llama/block_offsets.h"

#include <ggml-backend.h>
#include <ggml-cpu.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "llama/offset_products.h"

namespace kvspan::testing {
namespace {

struct FreeContext {
  void operator()(ggml_context* ctx) const { ggml_free(ctx); }
  void operator()(ggml_backend_buffer* buffer) const { ggml_backend_buffer_free(buffer); }
};

// A Q4_1 matrix of numbers that are not centred, and what they are.
class Q41Matrix {
 public:
  Q41Matrix(std::int64_t in, std::int64_t out, std::uint32_t seed)
      : ctx_(ggml_init({ggml_tensor_overhead(), nullptr, /*no_alloc=*/true})),
        tensor_(ggml_new_tensor_2d(ctx_.get(), GGML_TYPE_Q4_1, in, out)),
        buffer_(
            ggml_backend_alloc_ctx_tensors_from_buft(ctx_.get(), ggml_backend_cpu_buffer_type())),
        numbers_(static_cast<std::size_t>(in * out)) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0.3f);
    for (float& x : numbers_) x = normal(random);
    ggml_quantize_chunk(GGML_TYPE_Q4_1, numbers_.data(), tensor_->data, 0, out, in, nullptr);
    ggml_get_type_traits(GGML_TYPE_Q4_1)->to_float(tensor_->data, numbers_.data(), in * out);
  }
  ggml_tensor* tensor() const { return tensor_; }
  double at(std::int64_t row, std::int64_t i) const {
    return numbers_[static_cast<std::size_t>(row * tensor_->ne[0] + i)];
  }
  // The offsets, and the rest as ggml reads it, [out][in].
  std::pair<BlockOffsets, std::vector<float>> split() const {
    std::vector<std::byte> rest(ggml_row_size(GGML_TYPE_Q4_0, ggml_nelements(tensor_)));
    BlockOffsets offsets(tensor_, rest.data());
    std::vector<float> centred(numbers_.size());
    ggml_get_type_traits(GGML_TYPE_Q4_0)
        ->to_float(rest.data(), centred.data(), ggml_nelements(tensor_));
    return {std::move(offsets), std::move(centred)};
  }

 private:
  std::unique_ptr<ggml_context, FreeContext> ctx_;
  ggml_tensor* tensor_;
  std::unique_ptr<ggml_backend_buffer, FreeContext> buffer_;
  std::vector<float> numbers_;
};

std::vector<float> random_columns(std::int64_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<std::size_t>(count));
  for (float& v : x) v = normal(random);
  return x;
}

struct Shape {
  std::int64_t in, out, columns;
};
const Shape kShapes[] = {{32, 16, 1}, {64, 48, 3}, {576, 64, 4}, {2112, 32, 37}, {4192, 16, 2}};

TEST(BlockOffsets, MatrixIsQ40PlusOffsets) {
  for (const auto& [in, out, columns] : kShapes) {
    const Q41Matrix matrix(in, out, 1);
    ASSERT_TRUE(BlockOffsets::fits(matrix.tensor()));
    const auto [offsets, centred] = matrix.split();
    const std::vector<float> x = random_columns(in * columns, 2);
    for (const int parts : {1, 2, 3}) {
      std::vector<float> y(static_cast<std::size_t>(out * columns), 0.5f);
      for (int part = 0; part < parts; ++part) {
        offsets.add_rows(x.data(), in, columns, part, parts, y.data(), out);
      }
      for (std::int64_t c = 0; c < columns; ++c) {
        for (std::int64_t r = 0; r < out; ++r) {
          double wanted = 0.5, size = 0.5;
          for (std::int64_t i = 0; i < in; ++i) {
            const double w = matrix.at(r, i) - centred[static_cast<std::size_t>(r * in + i)];
            const double product = w * x[static_cast<std::size_t>(c * in + i)];
            wanted += product;
            size += std::abs(product);
          }
          // Offsets are rounded to 11 bits; sums of at most 4,192 + 131 numbers in f32, some 40 of
          // them one after the other.
          EXPECT_NEAR(y[static_cast<std::size_t>(c * out + r)], wanted,
                      size * (0x1p-11 + 200 * 0x1p-24))
              << in << " x " << out << ", column " << c << ", row " << r;
        }
      }
    }
  }
}

// What the graph computes, with activations rounded to 8 bits by ggml. Where ggml has no layout for
// Q4_0, the product stays as it was.
TEST(BlockOffsets, ProductsAreThoseOfTheMatrix) {
  for (const auto& [in, out, columns] : kShapes) {
    const Q41Matrix matrix(in, out, 3);
    const std::vector<float> centred = matrix.split().second;
    std::unique_ptr<ggml_context, FreeContext> ctx(
        ggml_init({std::size_t{64} << 20, nullptr, false}));
    ggml_tensor* x = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, in, columns);
    const std::vector<float> numbers = random_columns(in * columns, 4);
    std::copy(numbers.begin(), numbers.end(), static_cast<float*>(x->data));
    ggml_tensor* y = ggml_mul_mat(ctx.get(), matrix.tensor(), x);
    OffsetProducts products;
    products.replace(y);
    const bool split = y->src[0] != matrix.tensor();
    ggml_cgraph* graph = ggml_new_graph(ctx.get());
    ggml_build_forward_expand(graph, y);
    ASSERT_EQ(ggml_graph_compute_with_ctx(ctx.get(), graph, 2), GGML_STATUS_SUCCESS);
    for (std::int64_t c = 0; c < columns; ++c) {
      for (std::int64_t r = 0; r < out; ++r) {
        double wanted = 0.0, allowed = 0.0;
        for (std::int64_t b = 0; b < in; b += 32) {
          double largest = 0.0, weights = 0.0, offsets = 0.0;
          for (std::int64_t i = b; i < b + 32; ++i) {
            const double v = numbers[static_cast<std::size_t>(c * in + i)];
            wanted += matrix.at(r, i) * v;
            largest = std::max(largest, std::abs(v));
            weights += std::abs(split ? centred[static_cast<std::size_t>(r * in + i)]
                                      : static_cast<float>(matrix.at(r, i)));
            offsets += (matrix.at(r, i) - centred[static_cast<std::size_t>(r * in + i)]) * v;
          }
          // Half a step of 8 bits for each activation, whose scale is rounded to f16, as the offset
          // is; a little for sums in f32.
          allowed += weights * largest * (0.5 / 127 + 0x1p-11 + 0x1p-16);
          allowed += std::abs(offsets) * (0x1p-11 + 0x1p-16);
        }
        EXPECT_NEAR(static_cast<float*>(y->data)[c * out + r], wanted, allowed)
            << in << " x " << out << ", column " << c << ", row " << r;
      }
    }
  }
}

TEST(BlockOffsets, OtherMatricesStayAsTheyAre) {
  EXPECT_FALSE(BlockOffsets::fits(Q41Matrix(64, 24, 5).tensor()));  // rows not a multiple of 16
  std::unique_ptr<ggml_context, FreeContext> ctx(ggml_init({1 << 20, nullptr, false}));
  ggml_tensor* floats = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, 64, 32);
  ggml_tensor* product =
      ggml_mul_mat(ctx.get(), floats, ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, 64, 1));
  OffsetProducts products;
  products.replace(product);
  EXPECT_EQ(product->src[0], floats);
}

}  // namespace
}  // namespace kvspan::testing
