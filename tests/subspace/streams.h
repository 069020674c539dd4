// SPDX-License-Identifier: Apache-2.0
// Streams of rows that trackers must survive, made or read from files; each has a name for failure
// messages. Real activations: add a line to kActivationFiles.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "base/random.h"
#include "linalg/matrix.h"

namespace kvspan {

struct Stream {
  std::string name;
  Matrix rows;
};

// Raw f32, row-major, little-endian; the path counts from the root of the repository.
struct ActivationFile {
  const char* path;
  std::size_t dim;
};
inline const std::vector<ActivationFile> kActivationFiles = {};

inline std::vector<Stream> read_activations(std::size_t max_rows) {
  std::vector<Stream> streams;
  for (const auto& [path, dim] : kActivationFiles) {
    std::ifstream file(std::string(KVSPAN_SOURCE_DIR "/") + path, std::ios::binary);
    std::vector<float> values(max_rows * dim);
    file.read(reinterpret_cast<char*>(values.data()),
              static_cast<std::streamsize>(values.size() * sizeof(float)));
    const auto rows = static_cast<std::size_t>(file.gcount()) / (dim * sizeof(float));
    Matrix A(rows, dim);
    std::copy_n(values.data(), rows * dim, A.data());
    streams.push_back({path, std::move(A)});
  }
  return streams;
}

inline Matrix gaussian_rows(std::size_t n, std::size_t d, Random& random) {
  Matrix A(n, d);
  for (std::size_t i = 0; i < n * d; ++i) A.data()[i] = static_cast<float>(random.normal());
  return A;
}

// Gaussian rows whose spectrum falls by `ratio` from one direction to the next, the directions
// being columns of a random mixing matrix.
inline Matrix falling_rows(std::size_t n, std::size_t d, double ratio, Random& random) {
  const Matrix mixing = gaussian_rows(d, d, random);
  const Matrix raw = gaussian_rows(n, d, random);
  Matrix A(n, d);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t t = 0; t < d; ++t) {
      const double share =
          raw(i, t) * std::pow(ratio, static_cast<double>(t)) / std::sqrt(static_cast<double>(d));
      for (std::size_t j = 0; j < d; ++j) A(i, j) += static_cast<float>(share * mixing(t, j));
    }
  }
  return A;
}

inline void scale_rows(Matrix& A, auto&& factor) {
  for (std::size_t i = 0; i < A.rows(); ++i) {
    const double f = factor(i);
    for (std::size_t j = 0; j < A.cols(); ++j) A(i, j) = static_cast<float>(f * A(i, j));
  }
}

// Everything at scale 1.
inline std::vector<Stream> made_streams(std::size_t n, std::size_t d, std::uint64_t seed) {
  Random random(seed);
  std::vector<Stream> all;
  all.push_back({"flat", gaussian_rows(n, d, random)});
  all.push_back({"falling", falling_rows(n, d, 0.8, random)});
  all.push_back({"heavy tails", falling_rows(n, d, 0.9, random)});  // Pareto, index 1.2
  scale_rows(all.back().rows,
             [&](std::size_t) { return std::pow(1.0 - random.uniform(), -1.0 / 1.2); });
  all.push_back({"massive tokens", falling_rows(n, d, 0.9, random)});
  scale_rows(all.back().rows, [](std::size_t i) { return i % 97 == 3 ? 1e3 : 1.0; });
  all.push_back({"rank 3", Matrix(n, d)});
  const Matrix left = gaussian_rows(n, 3, random), right = gaussian_rows(3, d, random);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < d; ++j) {
      for (std::size_t t = 0; t < 3; ++t) all.back().rows(i, j) += left(i, t) * right(t, j);
    }
  }
  all.push_back({"constant", Matrix(n, d)});
  const Matrix pattern = gaussian_rows(1, d, random);
  for (std::size_t i = 0; i < n; ++i) std::copy_n(pattern.data(), d, all.back().rows.row(i));
  all.push_back({"zeros", Matrix(n, d)});
  all.push_back({"mostly zeros", falling_rows(n, d, 0.7, random)});
  scale_rows(all.back().rows, [](std::size_t i) { return i % 5 == 0 ? 1.0 : 0.0; });
  all.push_back({"drifting", falling_rows(n, d, 0.7, random)});
  const Matrix later = falling_rows(n, d, 0.7, random);
  for (std::size_t i = n / 2; i < n; ++i) std::copy_n(later.row(i), d, all.back().rows.row(i));
  return all;
}

// All of it at scales 1e-3, 1 and 1e3, and the real activations.
inline std::vector<Stream> all_streams(std::size_t n, std::size_t d, std::uint64_t seed) {
  std::vector<Stream> all;
  for (const double scale : {1e-3, 1.0, 1e3}) {
    for (Stream& stream : made_streams(n, d, seed)) {
      scale_rows(stream.rows, [&](std::size_t) { return scale; });
      stream.name += scale < 1.0 ? " x 1e-3" : scale > 1.0 ? " x 1e3" : "";
      stream.name += " [" + std::to_string(n) + ", " + std::to_string(d) + "]";
      all.push_back(std::move(stream));
    }
  }
  for (Stream& stream : read_activations(n)) all.push_back(std::move(stream));
  return all;
}

}  // namespace kvspan
