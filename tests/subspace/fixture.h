// SPDX-License-Identifier: Apache-2.0
// Reads the arrays that fixtures/make_fixtures.py wrote.
#pragma once

#include <cstdint>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "linalg/matrix.h"

namespace kvspan {

struct FixtureArray {
  std::vector<std::size_t> shape;
  std::vector<double> values;

  Matrix matrix() const {
    Matrix A(shape.at(0), shape.at(1));
    for (std::size_t i = 0; i < values.size(); ++i) A.data()[i] = static_cast<float>(values[i]);
    return A;
  }
};

inline std::map<std::string, FixtureArray> read_fixture(const std::string& name) {
  std::map<std::string, FixtureArray> arrays;
  std::ifstream file(KVSPAN_SOURCE_DIR "/tests/subspace/fixtures/" + name, std::ios::binary);
  const auto number = [&] {
    std::uint32_t value = 0;
    file.read(reinterpret_cast<char*>(&value), sizeof(value));
    return value;
  };
  for (std::uint32_t length = number(); file; length = number()) {
    std::string key(length, ' ');
    file.read(key.data(), length);
    const std::uint32_t kind = number(), dims = number();
    FixtureArray array;
    std::size_t count = 1;
    for (std::uint32_t i = 0; i < dims; ++i) {
      array.shape.push_back(number());
      count *= array.shape.back();
    }
    array.values.resize(count);
    for (double& value : array.values) {
      float narrow = 0.0f;
      if (kind == 0) {
        file.read(reinterpret_cast<char*>(&narrow), sizeof(narrow));
        value = narrow;
      } else {
        file.read(reinterpret_cast<char*>(&value), sizeof(value));
      }
    }
    arrays[key] = std::move(array);
  }
  return arrays;
}

}  // namespace kvspan
