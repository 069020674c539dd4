// SPDX-License-Identifier: Apache-2.0
// Everything `kvspan inspect` says about a model's keys and values, from calibrations of one or
// several texts. docs/reference/inspect.md defines each figure.
// Cost: per head and side one eigenproblem for each text and chunk, and a pass over the samples.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "analysis/compare.h"
#include "analysis/timeline.h"
#include "kvspan/calibration.h"

namespace kvspan {

struct InspectOptions {
  std::int32_t anchor = 0;         // > 0: also keys anchored in blocks of this many positions
  std::int32_t chunk = 512;        // positions of a chunk
  std::int32_t bins = 16;          // of residuals by position
  bool centred = false;            // spectra of covariances instead of second moments
  std::vector<std::size_t> ranks;  // of overlaps, residuals and sensitivities; empty: dim/8, /4, /2
  std::vector<std::size_t> layers;  // empty: all
};

struct CorpusPair {
  std::size_t a = 0, b = 0;             // directions of a, energy of b; a != b
  std::vector<Comparison> comparisons;  // [ranks]
};

// One side of one KV head, over all texts together unless said otherwise.
struct HeadInspection {
  Side side = Side::kValue;
  std::size_t head = 0;
  std::vector<std::size_t> ranks;  // what the lists by rank are of
  std::vector<double> spectrum;    // [dim], eigenvalues, descending
  SpectrumFigures figures;
  double gain_bits = 0.0;                  // coding gain of the head alone
  std::vector<double> sensitivities;       // [ranks]; keys after RoPE and values only
  std::vector<SpectrumFigures> by_corpus;  // [texts]
  std::vector<CorpusPair> pairs;           // all of different texts
  std::vector<ChunkInspection> chunks;     // of the first text's first window
  std::vector<PositionBin> residuals;      // of the first text's samples
};

// Bits an element saved over one step for all (analysis/coding_gain.h), the same elements with
// transforms of growing reach.
struct LayerGain {
  Side side = Side::kValue;
  double head = 0.0, layer = 0.0;  // each head apart; all heads together
};
struct JointGain {
  Side side = Side::kKeyPre;  // of the keys that values are joined with
  // Keys and values, each over its mean variance: each head apart, heads together but keys and
  // values apart, all together.
  double head = 0.0, layer = 0.0, key_value = 0.0;
};

struct LayerInspection {
  std::size_t layer = 0;
  std::vector<HeadInspection> heads;  // by side, then head
  std::vector<LayerGain> gains;       // by side
  std::vector<JointGain> joint;       // keys before RoPE, and anchored where asked for
};

struct Inspection {
  std::vector<Side> sides;
  std::vector<LayerInspection> layers;
  bool cancelled = false;  // layers are those done until then
};

// Ranks above a dimension, layers beyond the model's are refused. `progress` is called after each
// layer and returns false to stop.
Result<Inspection> inspect_calibrations(
    const CacheShape& shape, std::span<const Calibration> texts, const InspectOptions& options,
    const std::function<bool(std::size_t done, std::size_t total)>& progress = nullptr);

}  // namespace kvspan
