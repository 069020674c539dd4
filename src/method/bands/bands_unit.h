// SPDX-License-Identifier: Apache-2.0
// One code of bands in the making: some heads of one layer, or the same ones of neighbouring layers, keys, values or both. Its
// vector has the keys of all layers first, then the values of all.
// A unit is made in two steps with the bits of all layers chosen between them, so that a layer's
// moments and samples need to be there only while one of the steps is at it; in between a unit
// holds its directions, which are what its code will hold, and their variances.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cache/bands/bands_code.h"
#include "kvspan/calibration.h"
#include "kvspan/result.h"
#include "linalg/matrix.h"
#include "method/bands/bands_design.h"
#include "method/calibrated/moments.h"

namespace kvspan::detail {

struct BandsUnit {
  LayerRange layers;
  HeadRange heads;
  bool keys = false, values = false;
  std::vector<float> mean;    // [D]
  Matrix synthesis;           // B [D, D], a column for each component, by falling power
  std::vector<double> power;  // [D]
  std::vector<std::uint8_t> bits;
  std::vector<std::shared_ptr<const BandsCode>> codes;  // of each layer
};

// What a unit's layers have learnt, in order.
using UnitCalibration = std::vector<std::shared_ptr<const LayerCalibration>>;

class BandsDesigner {
 public:
  // All three are referred to. Of the calibration's layers only the weights are read here.
  BandsDesigner(const CacheShape& shape, const Calibration& calibration,
                const BandsOptions& options)
      : shape_(shape), calibration_(calibration), options_(options) {}

  // True if alpha (below) affects the design.
  bool balances() const;

  // Mean, directions and power from the layers' moments, keys weighed by alpha against values
  // where that balances them. Without `directions` only power stays.
  Status analyse(BandsUnit& u, const UnitCalibration& learnt, double alpha, bool directions) const;
  // The codes, from directions and bits; the directions are freed. Steps are fitted to the samples.
  Status finish(BandsUnit& u, const UnitCalibration& learnt, double alpha,
                const std::shared_ptr<Ledger>& ledger) const;

 private:
  std::size_t key_width(const BandsUnit& u) const;
  std::size_t value_width(const BandsUnit& u) const;
  // All layers of a unit are alike.
  const LayerShape& layer(const BandsUnit& u) const { return shape_.layers[u.layers.first]; }
  // Numbers of one layer of a unit.
  std::size_t layer_keys(const BandsUnit& u) const { return key_width(u) / u.layers.count; }
  std::size_t layer_values(const BandsUnit& u) const { return value_width(u) / u.layers.count; }
  Domain domain() const;  // of keys
  std::vector<std::size_t> places_of(const BandsUnit& u) const;
  void take_mean(BandsUnit& u, const UnitCalibration& learnt) const;
  MatrixD take_moment(BandsUnit& u, const UnitCalibration& learnt) const;
  MatrixD metric_of(const BandsUnit& u, const UnitCalibration& learnt, double alpha) const;
  void place_metric(const BandsUnit& u, std::size_t index, const LayerCalibration& learnt, double alpha,
                    MatrixD& to) const;
  Result<std::shared_ptr<const BandsCode>> code_of(const BandsUnit& u, std::size_t index, BandsParts parts,
                                                   const MatrixD& metric, const Matrix& synthesis,
                                                   const std::shared_ptr<Ledger>& ledger) const;
  Matrix sample_coefficients(const BandsUnit& u, const UnitCalibration& learnt,
                             const Matrix& analysis, const BandsLayout& layout,
                             const std::vector<float>& sigma) const;

  const CacheShape& shape_;
  const Calibration& calibration_;
  const BandsOptions& options_;
};

}  // namespace kvspan::detail
