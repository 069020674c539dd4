// SPDX-License-Identifier: Apache-2.0
// The codes of bands for all layers of a model, from its calibration.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "attention/bands/bands_tokens.h"
#include "cache/bands/bands_code.h"
#include "kvspan/calibration.h"
#include "kvspan/result.h"
#include "method/calibrated/moments.h"
#include "recipe/value.h"

namespace kvspan {

struct BandsOptions {
  bool joint = true;                        // keys and values of a group in one code
  std::int32_t layers = 1;                  // neighbouring ones in one code, where they are alike; with `joint`
  double bits = 2.0;                        // an element, gain included
  double key_bits = 0.0, value_bits = 0.0;  // the same where they are coded apart; 0: share `bits`
  LevelSet levels;
  std::size_t grain = 1;     // neighbouring components that get the same width
  std::int32_t anchor = 64;  // 0: keys after RoPE, or before it
  bool before_rope = false;
  bool gain = true;
  BandsQuantizer quantizer = BandsQuantizer::kTrellis;
  bool query_metric = true;  // LayerCalibration's metrics; else errors count alike within a side
  // Where both are coded together and layers have no weights, keys are weighed against values so that a bit buys as
  // much in either; else as the metric says.
  bool balanced = false;
  // Codes learnt from one sequence: its own (MemoryKind::kBases), with a
  // diagonal metric (BandsParts::weights; not with query_metric), designed by the calling thread
  // alone.
  bool own = false;
};

// What one bit more takes off the squared error in the metric where it is spent best, of keys and of values; those of
// both together stand under keys.
struct BitWorth {
  double keys = 0.0, values = 0.0;
};

// The codes of some heads of a layer.
struct GroupBands : BandsCodes {
  HeadRange heads;
  // What the codes leave of the moments under the metrics, by the quantizer's formula; those of
  // both together stand under keys, and those of several layers under the last of them.
  double key_distortion = 0.0, value_distortion = 0.0;
  BitWorth worth;
};

// Neighbouring layers that are coded together: as many as asked for, of the same heads, RoPE and window.
struct LayerRange {
  std::size_t first = 0, count = 1;
  std::size_t last() const noexcept { return first + count - 1; }
};
std::vector<LayerRange> layers_coded_together(const CacheShape& shape, std::int32_t most);

// Where the calibration has measured layer weights, sides and layers compete by them; else all
// layers count alike, and keys against values so that a bit buys as much in either.
// groups[l]: the heads of layer l that are coded together; alike in layers that are. Codes go to the ledger as shared. Fails
// where the calibration does not allow a code, naming the layer. Cost: an eigenproblem of the width
// of z, of all layers of a code, for each group, shared out among the processor's threads. Memory beside the codes: some 10
// D^2 numbers and the code's layers of the calibration for each thread, and D^2 for each code until it
// is made.
Result<std::vector<std::vector<GroupBands>>> design_bands(
    const CacheShape& shape, const Calibration& calibration,
    const std::vector<std::vector<HeadRange>>& groups, const BandsOptions& options,
    const std::shared_ptr<Ledger>& ledger, const DesignProgress& progress = nullptr);

}  // namespace kvspan
