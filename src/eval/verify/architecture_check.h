// SPDX-License-Identifier: Apache-2.0
// Whether a model runs on kvspan's caches, and how far its logits then are from llama.cpp's with an
// f32 cache, beside how far llama.cpp's own f16 cache is. For models of any architecture, tiny and
// random ones too: tokens are random.
#pragma once

#include <cstdint>
#include <string>

#include "kvspan/result.h"

namespace kvspan {

struct ArchitectureCheckOptions {
  std::string recipe = "full";
  std::int32_t tokens = 2000;  // enough to leave windows behind
  std::int32_t decoded = 20;   // of them, the last, are fed one by one
  std::int32_t block = 64;
  std::int32_t compared = 8;  // one token in `compared` has its logits compared, and every decoded one
  int threads = 2;
};

struct ArchitectureCheck {
  std::string architecture;
  bool runs = false;
  std::string reason;           // why not
  double max_diff = 0.0;        // largest difference of a logit, over the largest logit
  double max_diff_stock = 0.0;  // the same of llama.cpp with an f16 cache
};

// Fails only for a recipe that does not parse; a model that does not run is a row that says why.
Result<ArchitectureCheck> check_architecture(const std::string& model_path,
                                             const ArchitectureCheckOptions& options);

}  // namespace kvspan
