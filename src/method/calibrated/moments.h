// SPDX-License-Identifier: Apache-2.0
// The second moment of what a code sees, out of a calibration: some heads of one layer, in one
// domain.
#pragma once

#include <cstdint>
#include <vector>

#include "cache/code/code.h"
#include "kvspan/cache.h"
#include "kvspan/calibration.h"
#include "linalg/matrix.h"

namespace kvspan {

// Heads first .. first + count - 1 of a layer, joined.
struct HeadRange {
  std::int32_t first = 0;
  std::int32_t count = 1;
};

struct Moment {
  MatrixD second;           // [D, D]; about the mean where there is one
  std::vector<float> mean;  // [D], or empty: none is subtracted
};

// Post-RoPE keys and values as they are, as the documents stack them (about the origin); pre-RoPE
// keys likewise; anchored keys about their rotating mean, `anchor_block` positions to a block.
Moment moment_of(const LayerShape& layer, const LayerCalibration& calibration, Domain domain,
                 const HeadRange& heads, std::int32_t anchor_block);

// Block-diagonal over heads: `metric` [kv_heads][d * d] of errors of keys after RoPE (E[q q'] of the queries that read
// them, say), or of values where that is the domain. For pre-RoPE and anchored keys, which queries meet at every angle,
// each pair's mean energy.
MatrixD by_heads(const LayerShape& layer, const std::vector<float>& metric, Domain domain, const HeadRange& heads);

}  // namespace kvspan
