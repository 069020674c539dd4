// SPDX-License-Identifier: Apache-2.0
// One code of bands in the making: some heads of one layer, keys, values or both.
// A unit is made in two steps with the bits of all layers chosen between them, so that a layer's
// moments and samples need to be there only while one of the steps is at it; in between a unit
// holds its directions, which are what its code will hold, and their variances.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "cache/bands/bands_code.h"
#include "kvspan/calibration.h"
#include "kvspan/result.h"
#include "linalg/matrix.h"
#include "method/bands/bands_design.h"
#include "method/calibrated/moments.h"

namespace kvspan::detail {

struct BandsUnit {
  std::size_t layer = 0;
  HeadRange heads;
  bool keys = false, values = false;
  std::vector<float> mean;    // [D]
  Matrix synthesis;           // B [D, D], a column for each component, by falling power
  std::vector<double> power;  // [D]
  std::vector<std::uint8_t> bits;
  std::shared_ptr<const BandsCode> code;
};

class BandsDesigner {
 public:
  // All three are referred to. Of the calibration's layers only the weights are read here.
  BandsDesigner(const CacheShape& shape, const Calibration& calibration,
                const BandsOptions& options)
      : shape_(shape), calibration_(calibration), options_(options) {}

  // True if alpha (below) affects the design.
  bool balances() const;

  // Mean, directions and power from the layer's moments, keys weighed by alpha against values
  // unless weights were measured. Without `directions` only power stays.
  Status analyse(BandsUnit& u, const LayerCalibration& learnt, double alpha, bool directions) const;
  // The code, from directions and bits; the directions are freed. Steps are fitted to the samples.
  Status finish(BandsUnit& u, const LayerCalibration& learnt, double alpha,
                const std::shared_ptr<Ledger>& ledger) const;

 private:
  std::size_t key_width(const BandsUnit& u) const;
  std::size_t value_width(const BandsUnit& u) const;
  const LayerShape& layer(const BandsUnit& u) const { return shape_.layers[u.layer]; }
  Domain domain() const;  // of keys
  MatrixD take_moment(BandsUnit& u, const LayerCalibration& learnt) const;
  MatrixD metric_of(const BandsUnit& u, const LayerCalibration& learnt, double alpha) const;
  Matrix sample_coefficients(const BandsUnit& u, const LayerCalibration& learnt,
                             const Matrix& analysis, const BandsLayout& layout,
                             const std::vector<float>& sigma) const;

  const CacheShape& shape_;
  const Calibration& calibration_;
  const BandsOptions& options_;
};

}  // namespace kvspan::detail
