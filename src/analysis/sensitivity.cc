// SPDX-License-Identifier: Apache-2.0
#include "analysis/sensitivity.h"

#include <algorithm>

namespace kvspan {

// G's eigenvectors diagonalise (I-P) G (I-P) too, so only the quadratic forms v_i' M v_i of the
// directions left out are needed.
double discarded_energy(MatrixViewD M, const SymmetricEigen& G, std::size_t r) {
  const std::size_t d = G.values.size();
  double sum = 0.0;
  for (std::size_t i = r; i < d; ++i) {
    const double* v = G.vectors.row(i);
    double form = 0.0;
    for (std::size_t j = 0; j < d; ++j) {
      const double* m = M.row(j);
      double product = 0.0;
      for (std::size_t k = 0; k < d; ++k) product += m[k] * v[k];
      form += v[j] * product;
    }
    sum += std::max(G.values[i], 0.0) * form;
  }
  return sum;
}

}  // namespace kvspan
