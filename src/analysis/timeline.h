// SPDX-License-Identifier: Apache-2.0
// How one head's vectors change along a text: spectra of chunks of a window, the overlap of
// neighbouring chunks' leading directions, and residuals of fixed directions by position. From the
// sample rows of a calibration, which are rounded to f16.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "analysis/moments_of.h"
#include "analysis/spectrum.h"
#include "kvspan/result.h"
#include "linalg/symmetric_eigen.h"

namespace kvspan {

struct ChunkInspection {
  std::int32_t from = 0, to = 0;  // positions [from, to)
  std::size_t rows = 0;           // sampled there
  std::vector<double> spectrum;   // [dim]
  SpectrumFigures figures;
  // |U U_before'|_F^2 / r of the leading directions of this chunk and the one before, for each
  // rank; empty for the first chunk.
  std::vector<double> overlaps;
};

struct PositionBin {
  std::int32_t from = 0, to = 0;
  std::size_t rows = 0;
  std::vector<double> residuals;  // mean |(I-P)x| / |x| for each rank; rows of length 0 count as 0
};

// Rows of one head, in one side's domain: [samples, dim].
Matrix sample_rows(const LayerShape& shape, std::span<const std::int32_t> positions,
                   const LayerCalibration& layer, Side side, std::size_t head, std::int32_t anchor);

// How many of the samples belong to the text's first window: up to where positions fall back.
std::size_t first_window(std::span<const std::int32_t> positions);

// `rows` at increasing `positions`, in chunks of `chunk` positions; a chunk without rows, which
// ends the text, is left out. Ranks are at most the dimension.
Result<std::vector<ChunkInspection>> inspect_chunks(MatrixView rows,
                                                    std::span<const std::int32_t> positions,
                                                    std::int32_t chunk,
                                                    std::span<const std::size_t> ranks);

// `rows` at any positions, in `bins` equal parts of [0, window); bins without rows are left out.
std::vector<PositionBin> residuals_by_position(MatrixView rows,
                                               std::span<const std::int32_t> positions,
                                               const SymmetricEigen& directions,
                                               std::span<const std::size_t> ranks,
                                               std::int32_t window, std::int32_t bins);

}  // namespace kvspan
