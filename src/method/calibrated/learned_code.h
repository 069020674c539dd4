// SPDX-License-Identifier: Apache-2.0
// From directions to a code: the leading ones of a moment, with or without a metric, or rows that a
// tracker gives.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/memory.h"
#include "cache/code/code.h"
#include "kvspan/cache.h"
#include "kvspan/result.h"
#include "linalg/matrix.h"
#include "method/calibrated/moments.h"

namespace kvspan {

// How many directions to keep: a fixed number, or enough to hold a share of the energy.
struct RankRule {
  std::int32_t directions = 0;  // 0: by energy
  double energy = 0.0;

  // squared: descending, as many as there can be directions. At least 1.
  std::int32_t choose(std::span<const double> squared) const;
};

// What of a code does not come from the data.
struct CodeStyle {
  Domain domain = Domain::kValue;
  std::int32_t heads = 1;
  std::int32_t dim = 0;
  std::int32_t anchor_block = 0;
  const Rope* rope = nullptr;  // of keys
  CodecSpec codec;
  float gamma = 1.0f;
  BasisStore bases = BasisStore::kF32;  // of orthonormal codes; calibrated ones are shared anyway
};

// basis: [r, heads * dim], orthonormal rows.
Result<std::shared_ptr<const Code>> orthonormal_code(const CodeStyle& style, MatrixView basis,
                                                     std::span<const float> mean,
                                                     const std::shared_ptr<Ledger>& ledger,
                                                     MemoryKind kind);

// The basis of an orthonormal code, [r, D].
Matrix basis_rows(const Code& code);

// The transform that keeps the most of a moment S under an error metric M (no metric: the
// identity): U the eigenvectors of M^1/2 S M^1/2, A = U' M^1/2, B = M^-1/2 U, leading first. The
// metric is ridged by 1e-3 of its mean diagonal. Without a metric B = A' and only A is filled.
struct Transform {
  Matrix analysis;            // [D, D], rows by falling power
  Matrix synthesis;           // [D, D], columns likewise
  std::vector<double> power;  // [D]
};
// M with 1e-3 of its mean diagonal added to the diagonal; the identity for zeros.
MatrixD ridged(const MatrixD& metric);
Result<Transform> leading_transform(const MatrixD& moment, const std::optional<MatrixD>& metric);

Result<std::shared_ptr<const Code>> transform_code(const CodeStyle& style,
                                                   const Transform& transform, std::int32_t rank,
                                                   std::span<const float> mean,
                                                   const std::shared_ptr<Ledger>& ledger,
                                                   MemoryKind kind);

}  // namespace kvspan
