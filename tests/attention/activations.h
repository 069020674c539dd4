// SPDX-License-Identifier: Apache-2.0
// Activations of real models (data/activations), and their leading directions.
#pragma once

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "base/half.h"
#include "kvspan/cache.h"
#include "linalg/symmetric_eigen.h"

namespace kvspan::testing {

struct Activations {
  std::string name;
  LayerShape layer;
  std::int32_t tokens = 0;                   // at positions 0, 1, ..
  std::vector<float> keys, values, queries;  // [tokens, heads, dim], after RoPE
};

// Throws on a file that is not as tests/eval/dump_activations.cc writes them.
inline Activations read_activations(const std::string& name) {
  std::ifstream file(KVSPAN_SOURCE_DIR "/data/activations/" + name, std::ios::binary);
  file.exceptions(std::ios::failbit | std::ios::badbit | std::ios::eofbit);
  Activations a;
  a.name = name;
  std::string line, word, pairs;
  std::getline(file, line);
  if (line != "kvspan activations 1") throw std::ios_base::failure(name + ": " + line);
  std::getline(file, line);  // where they come from
  LayerShape& l = a.layer;
  file >> word >> a.tokens >> word >> l.query_heads >> word >> l.kv_heads >> word >> l.key_dim >>
      word >> l.value_dim >> word >> l.logit_scale >> word >> pairs >> l.rope.rotated_dims >>
      l.rope.magnitude;
  l.rope.pairs = pairs == "halves" ? Rope::Pairs::kHalves : Rope::Pairs::kNeighbours;
  l.rope.angles.resize(std::size_t(l.rope.rotated_dims / 2));
  for (double& angle : l.rope.angles) file >> angle;
  std::getline(file, line);
  std::getline(file, line);  // empty
  const auto rows = [&](std::int32_t heads, std::int32_t dim) {
    std::vector<float> out(std::size_t(a.tokens) * std::size_t(heads * dim));
    for (float& x : out) {
      unsigned char bytes[2];
      file.read(reinterpret_cast<char*>(bytes), 2);
      x = to_float(Half{static_cast<std::uint16_t>(bytes[0] | bytes[1] << 8)});
    }
    return out;
  };
  a.keys = rows(l.kv_heads, l.key_dim);
  a.values = rows(l.kv_heads, l.value_dim);
  a.queries = rows(l.query_heads, l.key_dim);
  return a;
}

inline std::vector<Activations> all_activations() {
  std::vector<Activations> all;
  for (const char* name :
       {"stories260k_layer1.f16", "stories260k_layer4.f16", "smollm2_layer15_head1.f16"}) {
    all.push_back(read_activations(name));
  }
  return all;
}

// The leading directions [rank, width] of n rows that lie `stride` floats apart, about the origin.
inline std::vector<float> leading_directions(const float* rows, std::size_t n, std::size_t stride,
                                             std::size_t width, std::size_t rank) {
  MatrixD gram(width, width);
  for (std::size_t t = 0; t < n; ++t) {
    for (std::size_t i = 0; i < width; ++i) {
      for (std::size_t j = 0; j < width; ++j) {
        gram(i, j) += double{rows[t * stride + i]} * double{rows[t * stride + j]};
      }
    }
  }
  const SymmetricEigen eigen = symmetric_eigen(gram.view()).value();
  std::vector<float> basis;
  for (std::size_t i = 0; i < rank; ++i) {
    for (std::size_t j = 0; j < width; ++j) {
      basis.push_back(static_cast<float>(eigen.vectors(i, j)));
    }
  }
  return basis;
}

}  // namespace kvspan::testing
