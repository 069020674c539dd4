// SPDX-License-Identifier: Apache-2.0
// Rows and what rivals make of them, from fixtures/make_rivals.py.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "kvspan/cache.h"
#include "kvspan/team.h"

namespace kvspan::testing {

class Rivals {
 public:
  static constexpr std::int32_t kRows = 64, kDim = 16;

  Rivals() {
    std::ifstream in(KVSPAN_SOURCE_DIR "/tests/method/fixtures/rivals.txt");
    std::string name;
    for (std::size_t count; in >> name >> count;) {
      std::vector<float>& numbers = fields_[name];
      numbers.resize(count);
      for (float& x : numbers) in >> x;
    }
    EXPECT_EQ(of("keys").size(), std::size_t(kRows * kDim));
  }
  const std::vector<float>& of(const std::string& name) const { return fields_.at(name); }

  // One layer, one head, nothing rotates.
  CacheShape shape() const {
    LayerShape layer;
    layer.query_heads = layer.kv_heads = 1;
    layer.key_dim = layer.value_dim = kDim;
    layer.logit_scale = 0.25f;
    return {{layer}};
  }
  void fill(KvCache& cache) const {
    TeamState state;
    Team team(state, 0, 1);
    std::vector<std::int32_t> positions(kRows);
    std::iota(positions.begin(), positions.end(), 0);
    const std::array<std::size_t, 3> extents{kRows, 1, kDim};
    ASSERT_TRUE(cache.append(
        0, {{of("keys").data(), extents}, {of("values").data(), extents}, positions}, team));
    ASSERT_TRUE(cache.settle(0, team));
  }

 private:
  std::map<std::string, std::vector<float>> fields_;
};

// Row by row, off by at most a share of the row's largest number.
inline void expect_rows(const std::vector<float>& got, const std::vector<float>& right,
                        double share) {
  ASSERT_EQ(got.size(), right.size());
  for (std::size_t row = 0; row < right.size(); row += Rivals::kDim) {
    double most = 0.0;
    for (std::size_t i = 0; i < Rivals::kDim; ++i) {
      most = std::max(most, std::abs(double{right[row + i]}));
    }
    for (std::size_t i = 0; i < Rivals::kDim; ++i) {
      EXPECT_NEAR(got[row + i], right[row + i], share * most) << "row " << row / Rivals::kDim;
    }
  }
}

// Of the 64 rows, those that are off by at most a share of their largest number everywhere.
inline int rows_alike(const std::vector<float>& got, const std::vector<float>& right,
                      double share) {
  EXPECT_EQ(got.size(), right.size());
  int alike = 0;
  for (std::size_t row = 0; row < right.size(); row += Rivals::kDim) {
    double most = 0.0, off = 0.0;
    for (std::size_t i = row; i < row + Rivals::kDim; ++i) {
      most = std::max(most, std::abs(double{right[i]}));
      off = std::max(off, std::abs(double{got[i]} - right[i]));
    }
    alike += off <= share * most ? 1 : 0;
  }
  return alike;
}

}  // namespace kvspan::testing
