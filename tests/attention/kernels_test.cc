// SPDX-License-Identifier: Apache-2.0
// Every kernel of every level this machine has, against double precision (products) or the
// definition (softmax), with misaligned pointers and lengths around the vector width.
#include "attention/kernels/kernels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/half.h"
#include "base/random.h"

namespace kvspan {
namespace {

constexpr double kUnit = 0x1p-24;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kGuard = -12345.0f;

class AtLevel : public ::testing::TestWithParam<CpuLevel> {
 protected:
  const AttentionKernels& kernels_ = attention_kernels(GetParam());
};

std::vector<float> normals(std::size_t count, std::uint64_t seed) {
  Random random(seed);
  std::vector<float> values(count);
  for (float& x : values) x = static_cast<float>(random.normal());
  return values;
}

// Rows in either element type, `shift` elements off alignment, with the exact numbers they hold.
struct Rows {
  std::vector<float> exact;
  std::vector<std::byte> bytes;
  RowsView view;

  Rows(std::int32_t tokens, std::int32_t stride, Element element, std::size_t shift,
       std::uint64_t seed)
      : exact(normals(std::size_t(tokens * stride), seed)) {
    bytes.resize((exact.size() + shift) * bytes_of(element));
    for (std::size_t i = 0; i < exact.size(); ++i) {
      const Half h = to_half(exact[i]);
      if (element == Element::kF16) exact[i] = to_float(h);
      const void* from = element == Element::kF16 ? static_cast<const void*>(&h) : &exact[i];
      std::memcpy(bytes.data() + (i + shift) * bytes_of(element), from, bytes_of(element));
    }
    view = {bytes.data() + shift * bytes_of(element), stride, element};
  }
};

TEST_P(AtLevel, ScoreRowsComputesDotProducts) {
  for (const Element element : {Element::kF16, Element::kF32}) {
    for (const std::int32_t dim : {8, 16, 24, 32, 40, 48, 64, 80, 128, 256}) {
      for (const std::int32_t rows : {1, 2, 3, 4, 5, 8}) {
        for (const std::int32_t tokens : {0, 1, 3, 4, 5, 8, 17, 64, 70}) {
          const std::int32_t stride = dim + 8, score_stride = tokens + 3;
          const Rows keys(tokens, stride, element, 1, 1);
          const std::vector<float> q = normals(std::size_t(rows * dim) + 1, 2);
          std::vector<float> s(std::size_t(rows * score_stride) + 1, kGuard);
          kernels_.score_rows(q.data() + 1, rows, dim, keys.view, tokens, keys.view.data,
                              s.data() + 1, score_stride);
          for (std::int32_t r = 0; r < rows; ++r) {
            for (std::int32_t t = 0; t < score_stride; ++t) {
              const float got = s[std::size_t(1 + r * score_stride + t)];
              if (t >= tokens) {
                ASSERT_EQ(got, kGuard);
                continue;
              }
              double exact = 0.0, size = 0.0;
              for (std::int32_t i = 0; i < dim; ++i) {
                const double product = double{q[std::size_t(1 + r * dim + i)]} *
                                       double{keys.exact[std::size_t(t * stride + i)]};
                exact += product;
                size += std::abs(product);
              }
              // dim products and sums, each off by u of a partial sum of absolute values.
              ASSERT_NEAR(got, exact, (dim + 1) * kUnit * size) << dim << " " << rows << " " << t;
            }
          }
        }
      }
    }
  }
}

TEST_P(AtLevel, WeighRowsAddsWeightedValues) {
  for (const Element element : {Element::kF16, Element::kF32}) {
    for (const std::int32_t dim : {8, 16, 24, 32, 40, 48, 64, 80, 128, 256}) {
      for (const std::int32_t rows : {1, 2, 3, 4, 5, 8}) {
        for (const std::int32_t tokens : {0, 1, 3, 4, 5, 8, 17, 64, 70}) {
          const std::int32_t stride = dim + 8, weight_stride = tokens + 1;
          const Rows values(tokens, stride, element, 1, 3);
          std::vector<float> w = normals(std::size_t(rows * weight_stride) + 1, 4);
          for (float& x : w) x = 1.0f / (1.0f + x * x);  // weights: in (0, 1]
          std::vector<float> out = normals(std::size_t(rows * dim) + 1, 5);
          const std::vector<float> before = out;
          kernels_.weigh_rows(w.data() + 1, weight_stride, rows, values.view, dim, tokens, nullptr,
                              out.data() + 1);
          for (std::int32_t r = 0; r < rows; ++r) {
            for (std::int32_t i = 0; i < dim; ++i) {
              const auto at = std::size_t(1 + r * dim + i);
              double exact = before[at], size = std::abs(exact);
              for (std::int32_t t = 0; t < tokens; ++t) {
                const double product = double{w[std::size_t(1 + r * weight_stride + t)]} *
                                       double{values.exact[std::size_t(t * stride + i)]};
                exact += product;
                size += std::abs(product);
              }
              ASSERT_NEAR(out[at], exact, (tokens + 2) * kUnit * size) << dim << " " << rows;
            }
          }
        }
      }
    }
  }
}

// Integer products are exact; two factors and the addition round: 4 u of the largest part.
TEST_P(AtLevel, ScoreCodesMultipliesIntegersExactly) {
  Random random(21);
  for (const std::int32_t dim : {8, 16, 24, 32, 40, 48, 64, 96, 128, 256, 512}) {
    for (const std::int32_t rows : {1, 2, 3, 4, 5, 8}) {
      for (const std::int32_t tokens : {0, 1, 2, 3, 4, 5, 7, 8, 9, 17, 64}) {
        for (const bool add : {false, true}) {
          const std::int32_t stride = dim + 3, q_stride = dim + 8, score_stride = tokens + 3;
          std::vector<std::int8_t> codes(std::size_t(tokens * stride) + 1);
          std::vector<std::int16_t> q(std::size_t(rows * q_stride) + 1);
          const bool extreme = random.below(4) == 0;
          for (auto& c : codes) {
            c = extreme ? std::int8_t(-128) : std::int8_t(std::int32_t(random.below(256)) - 128);
          }
          for (auto& x : q) {
            x = extreme
                    ? std::int16_t(-kQueryLimit)
                    : std::int16_t(std::int32_t(random.below(2 * kQueryLimit + 1)) - kQueryLimit);
          }
          const std::vector<float> scale = normals(std::size_t(tokens) + 1, 22);
          const std::vector<float> q_scale = normals(std::size_t(rows) + 1, 23);
          std::vector<float> s = normals(std::size_t(rows * score_stride) + 1, 24);
          const std::vector<float> before = s;
          kernels_.score_codes({q.data() + 1, q_stride, q_scale.data() + 1}, rows, dim,
                               {codes.data() + 1, stride, scale.data() + 1}, tokens, add,
                               s.data() + 1, score_stride);
          for (std::int32_t r = 0; r < rows; ++r) {
            for (std::int32_t t = 0; t < score_stride; ++t) {
              const auto at = std::size_t(1 + r * score_stride + t);
              if (t >= tokens) {
                ASSERT_EQ(s[at], before[at]);
                continue;
              }
              std::int64_t sum = 0;
              for (std::int32_t i = 0; i < dim; ++i) {
                sum += std::int64_t{q[std::size_t(1 + r * q_stride + i)]} *
                       codes[std::size_t(1 + t * stride + i)];
              }
              const double product =
                  double(sum) * q_scale[std::size_t(1 + r)] * scale[std::size_t(1 + t)];
              const double old = add ? before[at] : 0.0;
              ASSERT_NEAR(s[at], old + product, 4 * kUnit * (std::abs(product) + std::abs(old)))
                  << dim << " " << rows << " " << tokens;
            }
          }
        }
      }
    }
  }
}

TEST_P(AtLevel, WeighCodesAddsWeightedIntegers) {
  Random random(25);
  for (const std::int32_t dim : {8, 16, 24, 32, 40, 48, 64, 96, 128, 256}) {
    for (const std::int32_t rows : {1, 2, 3, 4, 5, 8}) {
      for (const std::int32_t tokens : {0, 1, 3, 4, 5, 8, 15, 16, 17, 63, 64, 65, 130}) {
        const std::int32_t stride = dim + 3, weight_stride = tokens + 1, out_stride = dim + 8;
        std::vector<std::int8_t> codes(std::size_t(tokens * stride) + 1);
        for (auto& c : codes) c = std::int8_t(std::int32_t(random.below(256)) - 128);
        const std::vector<float> scale = normals(std::size_t(tokens) + 1, 26);
        std::vector<float> w = normals(std::size_t(rows * weight_stride) + 1, 27);
        for (float& x : w) x = 1.0f / (1.0f + x * x);
        std::vector<float> out = normals(std::size_t(rows * out_stride) + 1, 28);
        const std::vector<float> before = out;
        kernels_.weigh_codes(w.data() + 1, weight_stride, rows,
                             {codes.data() + 1, stride, scale.data() + 1}, dim, tokens,
                             out.data() + 1, out_stride);
        for (std::int32_t r = 0; r < rows; ++r) {
          for (std::int32_t i = 0; i < out_stride; ++i) {
            const auto at = std::size_t(1 + r * out_stride + i);
            if (i >= dim) {
              ASSERT_EQ(out[at], before[at]);
              continue;
            }
            double exact = before[at], size = std::abs(exact), rounded = 0.0;
            for (std::int32_t first = 0; first < tokens; first += kWeightBlock) {
              double largest = 0.0, sum = 0.0;
              for (std::int32_t t = first; t < std::min(tokens, first + kWeightBlock); ++t) {
                const double weight = double{w[std::size_t(1 + r * weight_stride + t)]} *
                                      double{scale[std::size_t(1 + t)]};
                const double code = codes[std::size_t(1 + t * stride + i)];
                exact += weight * code;
                size += std::abs(weight * code);
                largest = std::max(largest, std::abs(weight));
                sum += std::abs(code);
              }
              rounded += kWeightRounding * largest * sum;
            }
            ASSERT_NEAR(out[at], exact, rounded + (tokens + 4) * kUnit * size)
                << dim << " " << rows;
          }
        }
      }
    }
  }
}

TEST_P(AtLevel, HalfPrecisionExtremesSurviveConversion) {
  // Largest, smallest normal and subnormal f16 numbers, both signs, in every lane.
  const std::uint16_t patterns[] = {0x7bff, 0xfbff, 0x0400, 0x8400, 0x03ff, 0x83ff,
                                    0x0001, 0x8001, 0x0000, 0x8000, 0x3c00, 0xbc00};
  for (const std::uint16_t pattern : patterns) {
    const float value = to_float(Half{pattern});
    for (std::int32_t lane = 0; lane < 16; ++lane) {
      std::vector<std::uint16_t> row(16, 0);
      row[std::size_t(lane)] = pattern;
      const RowsView view{reinterpret_cast<const std::byte*>(row.data()), 16, Element::kF16};
      for (const float q : {1.0f, -3.0f, 1e6f, 1e-6f}) {
        const std::vector<float> queries(16, q);
        float score = kGuard;
        kernels_.score_rows(queries.data(), 1, 16, view, 1, nullptr, &score, 1);
        EXPECT_EQ(score, q * value) << pattern << " lane " << lane;
      }
      const float weight = 0.375f;
      std::vector<float> out(16, 0.0f), wide(16, kGuard);
      kernels_.weigh_rows(&weight, 1, 1, view, 16, 1, nullptr, out.data());
      EXPECT_EQ(out[std::size_t(lane)], weight * value) << pattern << " lane " << lane;
      kernels_.widen(view, 16, 1, wide.data());
      EXPECT_EQ(wide[std::size_t(lane)], value);
    }
  }
}

TEST_P(AtLevel, WidenIsExact) {
  for (const Element element : {Element::kF16, Element::kF32}) {
    for (const std::int32_t dim : {8, 24, 64, 80}) {
      const Rows rows(5, dim + 8, element, 1, 6);
      std::vector<float> to(std::size_t(5 * dim) + 2, kGuard);
      kernels_.widen(rows.view, dim, 5, to.data() + 1);
      for (std::int32_t t = 0; t < 5; ++t) {
        for (std::int32_t i = 0; i < dim; ++i) {
          ASSERT_EQ(to[std::size_t(1 + t * dim + i)], rows.exact[std::size_t(t * (dim + 8) + i)]);
        }
      }
      EXPECT_EQ(to.front(), kGuard);
      EXPECT_EQ(to.back(), kGuard);
    }
  }
}

TEST_P(AtLevel, TileProductsMatchDoublePrecision) {
  for (const std::int32_t dim : {8, 24, 40, 64, 80, 128}) {
    for (const std::int32_t rows : {16, 32, 48, 96}) {
      for (const std::int32_t tokens : {1, 7, 8, 9, 30, 64}) {
        const std::int32_t padded = (tokens + kTokenMultiple - 1) / kTokenMultiple * kTokenMultiple;
        const std::vector<float> q = normals(std::size_t(rows * dim), 7);
        const std::vector<float> k = normals(std::size_t(padded * dim), 8);
        std::vector<float> panels(q.size()), s(std::size_t(padded * rows));
        for (std::int32_t r = 0; r < rows; ++r) {
          for (std::int32_t i = 0; i < dim; ++i) {
            panels[std::size_t((r / kPanelRows * dim + i) * kPanelRows + r % kPanelRows)] =
                q[std::size_t(r * dim + i)];
          }
        }
        kernels_.score_panels(panels.data(), rows, dim, k.data(), tokens, s.data());
        for (std::int32_t t = 0; t < tokens; ++t) {
          for (std::int32_t r = 0; r < rows; ++r) {
            double exact = 0.0, size = 0.0;
            for (std::int32_t i = 0; i < dim; ++i) {
              const double product =
                  double{q[std::size_t(r * dim + i)]} * double{k[std::size_t(t * dim + i)]};
              exact += product;
              size += std::abs(product);
            }
            ASSERT_NEAR(s[std::size_t(t * rows + r)], exact, (dim + 1) * kUnit * size);
          }
        }
        const std::vector<float> decay = normals(std::size_t(rows), 9);
        std::vector<float> out = normals(std::size_t(rows * dim), 10);
        const std::vector<float> before = out;
        kernels_.weigh_panels(s.data(), rows, k.data(), dim, tokens, decay.data(), out.data());
        for (std::int32_t r = 0; r < rows; ++r) {
          for (std::int32_t i = 0; i < dim; ++i) {
            double exact = double{decay[std::size_t(r)]} * double{before[std::size_t(r * dim + i)]};
            double size = std::abs(exact);
            for (std::int32_t t = 0; t < tokens; ++t) {
              const double product =
                  double{s[std::size_t(t * rows + r)]} * double{k[std::size_t(t * dim + i)]};
              exact += product;
              size += std::abs(product);
            }
            ASSERT_NEAR(out[std::size_t(r * dim + i)], exact, (tokens + 3) * kUnit * size);
          }
        }
      }
    }
  }
}

TEST_P(AtLevel, Exp2IsWithinItsStatedError) {
  std::vector<float> x;
  for (float v = 0.0f; v > -126.4f; v -= 0.0137f) x.push_back(v);
  for (float v = 0.0f; v > -2.0f; v -= 0.00011f) x.push_back(v);
  std::vector<float> y(x.size());
  kernels_.exp2(x.data(), std::int32_t(x.size()), y.data());
  for (std::size_t i = 0; i < x.size(); ++i) {
    // Below 2^-126 the result is subnormal: half a unit of 2^-149 comes on top.
    const double exact = std::exp2(double{x[i]});
    ASSERT_NEAR(y[i], exact, exact * 0x1p-22 + 0x1p-149) << x[i];
  }
  const std::vector<float> edges{0.0f, -1.0f, -126.0f, -127.0f, -128.0f, -1e4f, -3e38f, -kInfinity};
  std::vector<float> got(edges.size());
  kernels_.exp2(edges.data(), std::int32_t(edges.size()), got.data());
  EXPECT_EQ(got, (std::vector<float>{1.0f, 0.5f, 0x1p-126f, 0, 0, 0, 0, 0}));
}

TEST_P(AtLevel, SoftenRowGivesWeightsTheirSumAndTheMaximum) {
  for (const std::int32_t tokens : {1, 2, 3, 4, 5, 15, 16, 17, 31, 33, 255, 256}) {
    for (const float scale : {1.0f, 1e4f}) {
      for (const float old : {-kInfinity, -1e4f, 0.0f, 2e4f}) {
        const std::int32_t padded = (tokens + kScoreMultiple - 1) / kScoreMultiple * kScoreMultiple;
        std::vector<float> s = normals(std::size_t(padded) + 2, 11);
        for (float& x : s) x *= scale;
        s.back() = kGuard;
        const std::vector<float> before = s;
        float max = old;
        const float sum = kernels_.soften_row(s.data() + 1, tokens, &max);
        float expected_max = old;
        for (std::int32_t t = 0; t < tokens; ++t) {
          expected_max = std::max(expected_max, before[std::size_t(t + 1)]);
        }
        ASSERT_EQ(max, expected_max);
        double total = 0.0;
        for (std::int32_t t = 0; t < tokens; ++t) {
          // The difference is rounded once before the exponential: u of its size.
          const double x = double{before[std::size_t(t + 1)]} - double{max};
          const double exact = std::exp2(x), got = s[std::size_t(t + 1)];
          ASSERT_NEAR(got, exact, exact * (0x1p-22 + kUnit * std::abs(x)) + 0x1p-126);
          total += got;
        }
        ASSERT_NEAR(sum, total, tokens * kUnit * total);
        for (std::int32_t t = tokens; t < padded; ++t) ASSERT_EQ(s[std::size_t(t + 1)], 0.0f);
        ASSERT_EQ(s.back(), kGuard);
      }
    }
  }
  std::vector<float> empty(16, -kInfinity);
  float max = -kInfinity;
  EXPECT_EQ(kernels_.soften_row(empty.data(), 5, &max), 0.0f);
  EXPECT_EQ(max, -kInfinity);
  EXPECT_EQ(empty, std::vector<float>(16, 0.0f));
}

TEST_P(AtLevel, SoftenTileUpdatesTheRunningState) {
  Random random(12);
  for (const bool ranges : {false, true}) {
    for (const std::int32_t rows : {16, 48}) {
      for (const std::int32_t tokens : {1, 5, 64}) {
        std::vector<float> s = normals(std::size_t(rows * tokens), 13);
        const std::vector<float> before = s;
        std::vector<std::int32_t> begin, end;
        std::vector<float> max, sum, decay(std::size_t(rows), kGuard);
        for (std::int32_t r = 0; r < rows; ++r) {
          begin.push_back(std::int32_t(random.below(std::uint32_t(tokens + 1))));
          end.push_back(begin.back() +
                        std::int32_t(random.below(std::uint32_t(tokens + 1 - begin.back()))));
          const bool empty = random.below(3) == 0;
          max.push_back(empty ? -kInfinity : static_cast<float>(3 * random.normal()));
          sum.push_back(empty ? 0.0f : static_cast<float>(1 + random.uniform()));
        }
        const auto old_max = max, old_sum = sum;
        kernels_.soften_panels(s.data(), rows, tokens, ranges ? begin.data() : nullptr, end.data(),
                             max.data(), sum.data(), decay.data());
        for (std::int32_t r = 0; r < rows; ++r) {
          const auto at = std::size_t(r);
          float m = old_max[at];
          const auto seen = [&](std::int32_t t) {
            return !ranges || (t >= begin[at] && t < end[at]);
          };
          for (std::int32_t t = 0; t < tokens; ++t) {
            if (seen(t)) m = std::max(m, before[std::size_t(t * rows + r)]);
          }
          ASSERT_EQ(max[at], m);
          const double factor =
              old_max[at] == -kInfinity ? 0.0 : std::exp2(double{old_max[at]} - double{m});
          ASSERT_NEAR(decay[at], factor, factor * 0x1p-21);
          double total = old_sum[at] * factor;
          for (std::int32_t t = 0; t < tokens; ++t) {
            const auto i = std::size_t(t * rows + r);
            const double exact = seen(t) ? std::exp2(double{before[i]} - double{m}) : 0.0;
            ASSERT_NEAR(s[i], exact, exact * 0x1p-21);  // 2^-22 and u |x|, |x| < 16
            total += exact;
          }
          ASSERT_NEAR(sum[at], total, total * (0x1p-21 + (tokens + 2) * kUnit));
        }
      }
    }
  }
}

TEST_P(AtLevel, CapIsWithinItsStatedError) {
  for (const float c : {0.5f, 30.0f, 50.0f}) {
    for (const std::int32_t count : {1, 3, 16, 333}) {
      std::vector<float> z = normals(std::size_t(count) + 1, 14);
      for (std::size_t i = 0; i < z.size(); ++i)
        z[i] *= i % 3 == 0 ? 0.01f : i % 3 == 1 ? 2.0f : 300.0f;
      z.back() = kGuard;
      const std::vector<float> before = z;
      kernels_.cap(z.data(), count, c);
      const double log2e = 1.0 / std::log(2.0);
      for (std::int32_t i = 0; i < count; ++i) {
        const double exact = log2e * c * std::tanh(double{before[std::size_t(i)]} / (2 * log2e));
        ASSERT_NEAR(z[std::size_t(i)], exact, 8 * double{c} * kUnit * log2e);
      }
      EXPECT_EQ(z.back(), kGuard);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Levels, AtLevel, ::testing::ValuesIn(available_cpu_levels()),
                         [](const auto& level) {
                           std::string name(name_of(level.param));
                           for (char& c : name) c = c == '-' ? '_' : c;
                           return name;
                         });

}  // namespace
}  // namespace kvspan
