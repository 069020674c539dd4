// SPDX-License-Identifier: Apache-2.0
// Time since it was made.
#pragma once

#include <chrono>

namespace kvspan {

class Stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }
  double ms() const { return 1e3 * seconds(); }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace kvspan
