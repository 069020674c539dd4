// SPDX-License-Identifier: Apache-2.0
// Calibrations of random numbers, and whether two are equal.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/byte_stream.h"
#include "base/half.h"
#include "kvspan/calibration.h"

namespace kvspan::testing {

inline std::vector<float> random_numbers(std::size_t count, std::mt19937& random,
                                         bool half = false) {
  std::vector<float> numbers(count);
  std::uniform_real_distribution<float> uniform(0.1f, 2.0f);
  for (float& number : numbers) {
    number = uniform(random);
    if (half) number = to_float(to_half(number));
  }
  return numbers;
}

// Fits the shape; the numbers mean nothing.
inline Calibration random_calibration(const CacheShape& shape) {
  std::mt19937 random(3);
  Calibration out;
  out.model = "random";
  out.fingerprint = "00112233445566778899aabbccddeeff";
  out.tokens = 1234;
  out.window = 512;
  out.skip = 32;
  out.neighbours = 2;
  out.sample_positions = {32, 35, 500};
  for (const LayerShape& layer_shape : shape.layers) {
    const auto heads = static_cast<std::size_t>(layer_shape.kv_heads);
    const auto dk = static_cast<std::size_t>(layer_shape.key_dim);
    const auto dv = static_cast<std::size_t>(layer_shape.value_dim);
    const std::size_t joint = heads * (dk + dv);
    const std::size_t residuals = heads * kResidualRanks * kResidualPercentiles.size();
    LayerCalibration layer;
    layer.key_mean = random_numbers(heads * dk, random);
    layer.value_mean = random_numbers(heads * dv, random);
    layer.joint_moment = random_numbers(joint * joint, random);
    layer.rotated_key_mean = random_numbers(heads * dk, random);
    layer.rotated_key_moment = random_numbers(heads * dk * heads * dk, random);
    layer.query_moment = random_numbers(heads * dk * dk, random);
    layer.raw_query_moment = random_numbers(heads * dk * dk, random);
    layer.output_metric = random_numbers(heads * dv * dv, random);
    layer.key_metric = random_numbers(heads * dk * dk, random);
    layer.value_metric = random_numbers(heads * dv * dv, random);
    layer.sample_rows = random_numbers(3 * joint, random, true);
    layer.key_residuals = random_numbers(residuals, random);
    layer.value_residuals = random_numbers(residuals, random);
    layer.residual_energy = 1.0 / 3.0;
    layer.key_weight = 0.25f;
    layer.value_weight = 4.0f;
    out.layers.push_back(std::move(layer));
    out.ropes.push_back(layer_shape.rope);
  }
  const auto width = [&](std::size_t layer) {
    const LayerShape& of = shape.layers[layer];
    return static_cast<std::size_t>(of.kv_heads) *
           static_cast<std::size_t>(of.key_dim + of.value_dim);
  };
  for (std::size_t i = 0; i < out.layers.size(); ++i) {
    for (std::size_t next = i + 1; next < std::min(i + 3, out.layers.size()); ++next) {
      out.layers[i].cross_moments.push_back(random_numbers(width(i) * width(next), random));
    }
  }
  out.rates = {{1.0f, 0.04f, 0.05f}, {2.0f, 0.006f, 0.007f}};
  return out;
}

// The bytes of a calibration file with another number of its version, and a checksum that fits.
inline std::vector<std::byte> with_version(std::vector<std::byte> bytes, std::uint32_t version) {
  const std::string key = "kvspan.calibration.version";
  const auto* const begin = reinterpret_cast<const char*>(bytes.data());
  const auto at = std::string_view(begin, bytes.size()).find(key);
  EXPECT_NE(at, std::string_view::npos);
  // After the key stands the type of its value.
  std::memcpy(bytes.data() + at + key.size() + sizeof(std::uint32_t), &version, sizeof version);
  const std::uint64_t sum = crc64(std::span(bytes).first(bytes.size() - sizeof(std::uint64_t)));
  std::memcpy(bytes.data() + bytes.size() - sizeof sum, &sum, sizeof sum);
  return bytes;
}

inline void expect_equal(const Calibration& a, const Calibration& b) {
  EXPECT_EQ(a.model, b.model);
  EXPECT_EQ(a.fingerprint, b.fingerprint);
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_EQ(a.window, b.window);
  EXPECT_EQ(a.skip, b.skip);
  EXPECT_EQ(a.neighbours, b.neighbours);
  EXPECT_EQ(a.sample_positions, b.sample_positions);
  ASSERT_EQ(a.layers.size(), b.layers.size());
  for (std::size_t i = 0; i < a.layers.size(); ++i) {
    const LayerCalibration &x = a.layers[i], &y = b.layers[i];
    EXPECT_EQ(x.key_mean, y.key_mean);
    EXPECT_EQ(x.value_mean, y.value_mean);
    EXPECT_EQ(x.joint_moment, y.joint_moment);
    EXPECT_EQ(x.cross_moments, y.cross_moments);
    EXPECT_EQ(x.rotated_key_mean, y.rotated_key_mean);
    EXPECT_EQ(x.rotated_key_moment, y.rotated_key_moment);
    EXPECT_EQ(x.query_moment, y.query_moment);
    EXPECT_EQ(x.raw_query_moment, y.raw_query_moment);
    EXPECT_EQ(x.output_metric, y.output_metric);
    EXPECT_EQ(x.key_metric, y.key_metric);
    EXPECT_EQ(x.value_metric, y.value_metric);
    EXPECT_EQ(x.sample_rows, y.sample_rows);
    EXPECT_EQ(x.key_residuals, y.key_residuals);
    EXPECT_EQ(x.value_residuals, y.value_residuals);
    EXPECT_EQ(x.residual_energy, y.residual_energy);
    EXPECT_EQ(x.key_weight, y.key_weight);
    EXPECT_EQ(x.value_weight, y.value_weight);
  }
  EXPECT_EQ(a.ropes, b.ropes);
  ASSERT_EQ(a.rates.size(), b.rates.size());
  for (std::size_t i = 0; i < a.rates.size(); ++i) {
    EXPECT_EQ(a.rates[i].bits, b.rates[i].bits);
    EXPECT_EQ(a.rates[i].kl, b.rates[i].kl);
    EXPECT_EQ(a.rates[i].loss, b.rates[i].loss);
  }
}

}  // namespace kvspan::testing
