// SPDX-License-Identifier: Apache-2.0
// The plainest cache: every row of one layer as it came, attention in double precision. What caches answer is
// held against it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kvspan/cache.h"
#include "recipe/recipe.h"

namespace kvspan::fuzz {

class PlainLayer {
 public:
  explicit PlainLayer(const LayerShape& shape) : shape_(&shape) {}

  void append(std::span<const std::int32_t> positions, const std::vector<float>& keys, const std::vector<float>& values);
  void truncate(std::int32_t n);
  std::size_t tokens() const noexcept { return tokens_.size(); }

  // Of one head of a query at `position`.
  struct Answer {
    std::vector<double> output;     // of zeros where nothing is seen
    std::size_t seen = 0;           // tokens
    double largest_value = 0.0;     // of the tokens seen
    double largest_key = 0.0;       // the longest key that is seen
  };
  Answer attend(const float* query, std::int32_t head, std::int32_t position) const;
  // The longest row of values, all heads together.
  double longest_values() const;

 private:
  struct Token {
    std::int32_t position;
    std::vector<float> key, value;
  };
  bool sees(std::int32_t query, std::int32_t position) const noexcept;

  const LayerShape* shape_;
  std::vector<Token> tokens_;
};

// How far the Euclidean norm of a head's output may be from the plain answer: derived for rows that are kept in f32, f16,
// bf16 or 8 bits, and beyond that so much as no stored row can exceed.
double error_limit(const Recipe& recipe, const LayerShape& shape, const float* query, const PlainLayer& layer,
                   const PlainLayer::Answer& plain);

}  // namespace kvspan::fuzz
