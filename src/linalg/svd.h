// SPDX-License-Identifier: Apache-2.0
// Singular value decompositions, computed in f64; U and V rounded to f32, singular values kept.
// Method: QR, the eigenvectors of the smaller Gram, then one-sided Jacobi rotations, which restore
// what the Gram squares away. Cost: about 4 m n k + 30 k^3 flops for k = min(m, n).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kvspan/result.h"
#include "kvspan/team.h"
#include "linalg/matrix.h"

namespace kvspan {

struct Svd {
  Matrix U;                   // [m, k], orthonormal columns
  std::vector<double> sigma;  // [k], descending, never negative
  Matrix Vt;                  // [k, n], orthonormal rows
};

// A = U diag(sigma) Vt with k = min(m, n). Small singular values are accurate to about 2^-50 of the
// largest. Fails on an entry that is not finite, naming its row and column.
Result<Svd> thin_svd(MatrixView A);

struct RandomizedSvdOptions {
  std::size_t oversample = 8;   // directions kept beyond the rank while searching
  int power_iterations = 2;     // passes that sharpen a slowly falling spectrum
  std::uint64_t seed = 0x5eed;  // same seed, same result
};

// The leading k = min(rank, m, n) singular triples, approximately: a random range of rank +
// oversample directions, orthonormalised between passes over A (Halko, Martinsson, Tropp 2011).
// Exact to rounding where A has no more than that rank. Cost: (2 + 2 power_iterations) passes.
Result<Svd> randomized_svd(MatrixView A, std::size_t rank,
                           const RandomizedSvdOptions& options = {});

// One result per matrix, shared out among the team; every member calls with equal arguments, and
// the call ends with a barrier.
void thin_svd_batch(std::span<const MatrixView> matrices, std::span<Result<Svd>> out, Team& team);

}  // namespace kvspan
