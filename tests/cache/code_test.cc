// SPDX-License-Identifier: Apache-2.0
// Codes: what is refused, and the products they compute.
#include "cache/code/code.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/cache/coded_rows.h"

namespace kvspan {
namespace {

struct Made {
  std::vector<float> a, mean;
  CodeParts parts;
};

Made parts_of(std::size_t rank, std::size_t width, Random& random) {
  Made made;
  made.a = testing::orthonormal_rows(rank, width, random);
  made.parts.domain = Domain::kPostRopeKey;
  made.parts.dim = std::int32_t(width);
  made.parts.analysis = {made.a.data(), {rank, width}};
  return made;
}

void expect_refused(const CodeParts& parts, const std::string& word) {
  const auto made = Code::create(parts, nullptr);
  ASSERT_FALSE(made.has_value()) << word;
  EXPECT_EQ(made.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(made.error().message.find(word), std::string::npos) << made.error().message;
}

TEST(CodeCreate, RefusesShapesThatDoNotFit) {
  Random random(1);
  Made made = parts_of(3, 8, random);
  EXPECT_TRUE(Code::create(made.parts, nullptr).has_value());
  CodeParts bad = made.parts;
  bad.dim = 9;
  expect_refused(bad, "columns");
  bad = made.parts;
  bad.heads = 0;
  expect_refused(bad, "0 heads");
  bad = made.parts;
  bad.anchor_block = 64;
  expect_refused(bad, "anchor block");
  bad.domain = Domain::kAnchoredKey;
  bad.anchor_block = 0;
  expect_refused(bad, "anchor block");
  bad = made.parts;
  bad.synthesis = {made.a.data(), {3, 8}};
  expect_refused(bad, "synthesis");
  const std::vector<float> mean(7);
  bad = made.parts;
  bad.mean = mean;
  expect_refused(bad, "mean of 7");
  bad = made.parts;
  bad.domain = Domain::kValue;
  bad.gamma = 0.5f;
  expect_refused(bad, "gamma");
  const std::vector<float> tall(9 * 8, 1.0f);
  bad = made.parts;
  bad.analysis = {tall.data(), {9, 8}};
  expect_refused(bad, "rank 9");
  bad.analysis = {tall.data(), {0, 8}};
  expect_refused(bad, "rank 0");
}

TEST(CodeCreate, RefusesNumbersThatAreNotFinite) {
  Random random(2);
  for (const float wrong :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    Made made = parts_of(3, 8, random);
    made.a[13] = wrong;
    expect_refused(made.parts, "analysis");
    made = parts_of(3, 8, random);
    std::vector<float> mean(8);
    mean[5] = wrong;
    made.parts.mean = mean;
    expect_refused(made.parts, "mean");
    made = parts_of(3, 8, random);
    made.parts.gamma = wrong;
    expect_refused(made.parts, "gamma");
  }
}

TEST(CodeCreate, RefusesATransformThatIsNoInverse) {
  Random random(3);
  Made made = parts_of(5, 16, random);
  made.a[0] += 1e-3f;
  expect_refused(made.parts, "identity");
  made = parts_of(5, 16, random);
  // Off by less than the tolerance passes: |2 * 2e-5| in one element of AA^T.
  made.a[0] += 2e-5f;
  EXPECT_TRUE(Code::create(made.parts, nullptr).has_value());
  // A metric transform is checked as a pair.
  made = parts_of(5, 16, random);
  std::vector<float> b(made.a.size());
  for (std::size_t i = 0; i < 5; ++i) {
    for (std::size_t j = 0; j < 16; ++j) {
      b[j * 5 + i] = made.a[i * 16 + j] / 3.0f;
    }
  }
  made.parts.synthesis = {b.data(), {16, 5}};
  expect_refused(made.parts, "identity");
  for (float& x : made.a) x *= 3.0f;
  EXPECT_TRUE(Code::create(made.parts, nullptr).has_value());
}

TEST(CodeProducts, AreThoseOfTheMatrices) {
  Random random(4);
  const std::size_t heads = 3, d = 10, width = heads * d, rank = 13;
  Made made = parts_of(rank, width, random);
  made.parts.heads = heads;
  made.parts.dim = d;
  const auto code = Code::create(made.parts, nullptr).value();
  const auto x = testing::normals(width, random), c = testing::normals(rank, random);
  std::vector<float> got(rank), row(d), back(rank), whole(width);
  code->analyse(x.data(), got.data());
  code->analyse_transposed(c.data(), whole.data());
  const double bound = 64 * 0x1p-24 * 16 * 6;  // 32 products of numbers below 4
  for (std::size_t i = 0; i < rank; ++i) {
    double sum = 0.0;
    for (std::size_t j = 0; j < width; ++j) sum += double{made.a[i * width + j]} * x[j];
    EXPECT_NEAR(got[i], sum, bound);
  }
  for (std::size_t h = 0; h < heads; ++h) {
    code->synthesise(std::int32_t(h), c.data(), row.data());
    code->project(std::int32_t(h), x.data() + h * d, back.data());
    for (std::size_t j = 0; j < d; ++j) {
      double sum = 0.0;
      for (std::size_t i = 0; i < rank; ++i) sum += double{made.a[i * width + h * d + j]} * c[i];
      EXPECT_NEAR(row[j], sum, bound);
      EXPECT_NEAR(whole[h * d + j], sum, bound);
    }
    for (std::size_t i = 0; i < rank; ++i) {
      double sum = 0.0;
      for (std::size_t j = 0; j < d; ++j)
        sum += double{made.a[i * width + h * d + j]} * x[h * d + j];
      EXPECT_NEAR(back[i], sum, bound);
    }
  }
}

}  // namespace
}  // namespace kvspan
