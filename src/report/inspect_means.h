// SPDX-License-Identifier: Apache-2.0
// Means of numbers by a key (a position, an index, a layer), and the blocks of an inspection that
// have one number a layer.
#pragma once

#include <array>
#include <map>
#include <string>
#include <vector>

#include "report/documents.h"

namespace kvspan {

class Means {
 public:
  void add(double key, double value) {
    auto& [sum, count] = sums_[key];
    sum += value;
    count += 1.0;
  }
  std::map<double, double> values() const {
    std::map<double, double> out;
    for (const auto& [key, sum] : sums_) out[key] = sum.first / sum.second;
    return out;
  }

 private:
  std::map<double, std::pair<double, double>> sums_;
};

// Texts against each other, and coding gains.
std::vector<Block> inspect_layer_blocks(const NamedDocument& document,
                                        const std::vector<std::string>& sides);

}  // namespace kvspan
