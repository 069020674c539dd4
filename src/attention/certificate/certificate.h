// SPDX-License-Identifier: Apache-2.0
// How wrong attention over coded segments can be, per query and head, from the residual norms that
// the segments keep (quantization included).
//
//   logits   e_i >= |l_i - l^_i|: scale (|q.(k - k^)| + |1 - gamma| |q.k^|). The second product is
//            known; the first is at most |q| rho, and for post-RoPE codes also at most
//            |(I - BA)^T q| rho + |B^T q| (|c - c^| + |AB - I| |c^|), the smaller counts.
//   weights  |a - a^|_1 <= 2 tanh(max e / 2), or, where errors differ much between tokens, twice
//            the smaller of sum a^(e^{e_i} / Z- - 1) and sum a^(1 - e^{-e_i} / Z+), Z+- = sum a^
//            e^{+-e_i}; the smaller counts.
//            Where queries are rounded to 8 bits, |l^ - l~| is no longer small beside that, l~
//            being what attention computes: both errors are bounded so, and added.
//   output   |o - o^| <= |a - a^|_1 max|v_i - m| + sum a^_i |v_i - v^_i| for any m, since both
//            weights sum to one; m = 0 is the spec's form, m = o^ the other one tried. Where
//            weights are hardly off, sum of the bounds of |a_i - a^_i| |v_i - o^| is less.
// Roundings of f32 are added to each, and those of queries and weights where a store multiplies
// integers, as its facts say (attention/store_facts.h), so that the bounds hold for what attention
// computes, in either form.
// The reference is a cache that keeps the rows as they came where they are coded now, and stores
// full-rank rows as this one does.
// Cost: rebuilds every visible row of the head: a mode for checking, not for serving.
#pragma once

#include <cstdint>
#include <span>

#include "attention/token_store.h"
#include "kvspan/cache.h"
#include "kvspan/result.h"
#include "kvspan/tensor_view.h"

namespace kvspan {

struct Certificate {
  double logits = 0.0;   // >= |l - l^|_inf
  double weights = 0.0;  // >= |a - a^|_1
  double values = 0.0;   // >= sum a^_i |v_i - v^_i|
  double output = 0.0;   // >= |o - o^|_2
};

// Certificates of the query heads that read one KV head, of which the stores hold all tokens; out:
// [n, query_heads], of which only theirs are written, zeros where nothing is seen. Calls for
// different KV heads may run side by side. Fails if a coded token keeps no residuals. Allocates.
Status certify(const LayerShape& layer, std::span<const TokenStore* const> stores,
               const Queries& queries, std::int32_t kv_head, TensorView<Certificate, 2> out);

}  // namespace kvspan
