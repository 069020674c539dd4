// SPDX-License-Identifier: Apache-2.0
// Random rows, ropes and codes for the tests of coded segments.
#pragma once

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "cache/code/code.h"
#include "cache/rows/encode_rows.h"
#include "tests/cache/test_rope.h"

namespace kvspan::testing {

inline std::vector<float> normals(std::size_t n, Random& random, double scale = 1.0) {
  std::vector<float> x(n);
  for (float& v : x) v = static_cast<float>(scale * random.normal());
  return x;
}

// Orthonormal rows [rank, width].
inline std::vector<float> orthonormal_rows(std::size_t rank, std::size_t width, Random& random) {
  std::vector<double> q(rank * width);
  for (double& x : q) x = random.normal();
  for (std::size_t i = 0; i < rank; ++i) {
    for (int pass = 0; pass < 2; ++pass) {
      double norm = 0.0;
      for (std::size_t j = 0; j < i; ++j) {
        double dot = 0.0;
        for (std::size_t k = 0; k < width; ++k) dot += q[i * width + k] * q[j * width + k];
        for (std::size_t k = 0; k < width; ++k) q[i * width + k] -= dot * q[j * width + k];
      }
      for (std::size_t k = 0; k < width; ++k) norm += q[i * width + k] * q[i * width + k];
      for (std::size_t k = 0; k < width; ++k) q[i * width + k] /= std::sqrt(norm);
    }
  }
  return {q.begin(), q.end()};
}

// A code of random orthonormal directions, with a mean if `mean` > 0.
struct CodeOf {
  Domain domain = Domain::kValue;
  std::int32_t heads = 1, dim = 8, rank = 4, anchor_block = 0;
  double mean = 0.0;
  std::string codec = "f32";
  Rope rope = {};
  bool own_synthesis = false;  // stored apart although it is the transpose
};
inline std::shared_ptr<const Code> make_code(const CodeOf& of,
                                             const std::shared_ptr<Ledger>& ledger, Random& random,
                                             MemoryKind kind = MemoryKind::kBases) {
  const auto width = std::size_t(of.heads * of.dim), rank = std::size_t(of.rank);
  const auto a = orthonormal_rows(rank, width, random);
  const auto mean = normals(of.mean > 0.0 ? width : 0, random, of.mean);
  std::vector<float> b(a.size());
  for (std::size_t i = 0; i < rank; ++i) {
    for (std::size_t j = 0; j < width; ++j) b[j * rank + i] = a[i * width + j];
  }
  CodeParts parts;
  parts.domain = of.domain;
  parts.heads = of.heads;
  parts.dim = of.dim;
  parts.anchor_block = of.anchor_block;
  parts.rope = of.rope;
  parts.mean = mean;
  parts.analysis = {a.data(), {rank, width}};
  if (of.own_synthesis) parts.synthesis = {b.data(), {width, rank}};
  parts.codec = parse_codec_spec(of.codec).value();
  return Code::create(parts, ledger, kind).value();
}

// Rows of a text; keys are not turned (tests that need that say so).
struct Rows {
  std::size_t heads, key_dim, value_dim;
  std::vector<float> keys, values;
  std::vector<std::int32_t> positions;

  Rows(std::int32_t n, std::int32_t h, std::int32_t dk, std::int32_t dv, Random& random,
       double scale = 1.0)
      : heads(std::size_t(h)), key_dim(std::size_t(dk)), value_dim(std::size_t(dv)) {
    keys = normals(std::size_t(n) * heads * key_dim, random, scale);
    values = normals(std::size_t(n) * heads * value_dim, random, scale);
    for (std::int32_t t = 0; t < n; ++t) positions.push_back(t);
  }
  KvRows view() const {
    const std::size_t n = positions.size();
    KvRows rows;
    rows.keys = {keys.data(), {n, heads, key_dim}};
    rows.values = {values.data(), {n, heads, value_dim}};
    rows.positions = positions;
    return rows;
  }
};

}  // namespace kvspan::testing
