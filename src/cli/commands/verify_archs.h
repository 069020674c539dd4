// SPDX-License-Identifier: Apache-2.0
// kvspan verify --archs: every architecture that libllama knows, on tiny random models.
#pragma once

#include <cstdint>
#include <string>

#include "kvspan/result.h"

namespace kvspan::cli {

struct ArchsFlags {
  std::string archs;  // "all", names with commas, or a model's file; empty: not asked for
  std::string recipe = "full";
  std::string json;
  std::int64_t tokens = 2000;
  std::int64_t threads = 2;
};

// The exit status: 0 unless --archs names an architecture that libllama does not have.
Result<int> verify_archs(const ArchsFlags& flags);

}  // namespace kvspan::cli
